//! Dead letters that were kept as long as their destination's `keep` says: they end as discarded, on record as the
//! server's own doing. Nothing ends so unless the configuration asks for it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;
use wayhold_model::{DestinationId, Timestamp};
use wayhold_store::{DeadLetter, LetterAt, LetterQuery};

use super::letters::{Letters, RedeliveryError};
use super::{LettersMeant, letters};
use crate::config::quantity::show_duration;

/// Who ends what nobody ends.
const ITSELF: &str = "wayhold";

/// How often the letters of a destination are looked through, as a share of how long they are kept: none is kept
/// much longer than it should be.
const LOOKS_PER_KEEP: u32 = 10;

/// Bounds of that: a look reads every letter that there is.
const LOOK_MIN: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(600);

/// Between two pages of one look, so that it is a burden to nobody.
const PAGE_PAUSE: Duration = Duration::from_millis(50);

/// Looks through dead letters until `keeps`, which tells how long each destination keeps its own, says that there
/// is no more to do.
pub async fn run(
    letters: Letters,
    keeps: impl Fn() -> Option<Vec<(DestinationId, Duration)>> + Send,
) {
    let mut looked_at: BTreeMap<DestinationId, tokio::time::Instant> = BTreeMap::new();
    loop {
        sleep(LOOK_MIN).await;
        let Some(keeps) = keeps() else { return };
        for (destination, keep) in keeps {
            let pause = (keep / LOOKS_PER_KEEP).clamp(LOOK_MIN, LOOK_MAX);
            let last = looked_at.get(&destination);
            if last.is_some_and(|last| last.elapsed() < pause) {
                continue;
            }
            if let Err(error) = letters.end_kept(destination, keep).await {
                warn!(%error, "dead letters that were kept long enough stay for now");
            }
            looked_at.insert(destination, tokio::time::Instant::now());
        }
    }
}

/// Whether a letter has been kept for so long. One that is being sent again is not ended.
fn is_over(letter: &DeadLetter, keep: Duration, now: Timestamp) -> bool {
    !letter.redriving && now.since(letter.at) >= keep
}

impl Letters {
    /// Ends what was kept for `keep`; how many.
    async fn end_kept(
        &self,
        destination: DestinationId,
        keep: Duration,
    ) -> Result<u64, RedeliveryError> {
        let query = LetterQuery {
            destination: Some(destination),
            ..LetterQuery::default()
        };
        let which = LettersMeant {
            query: query.clone(),
            filter: None,
        };
        let reason = format!("kept for {}", show_duration(keep));
        let (mut after, mut ended) = (None, 0);
        loop {
            let query = query.clone();
            let page = self
                .ask(move |store| store.dead_letters().page(query, after, letters::LISTED_MAX))
                .await?;
            let now = self.clock.now();
            let letters = page.letters.iter();
            let over = letters.filter(|letter| is_over(letter, keep, now));
            let over: Vec<_> = over.map(LetterAt::of).collect();
            if !over.is_empty() {
                ended += self.discard_plan(over, &which, ITSELF, &reason).await?;
            }
            after = page.next;
            if after.is_none() {
                return Ok(ended);
            }
            sleep(PAGE_PAUSE).await;
        }
    }
}
