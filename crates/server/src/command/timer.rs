//! What time does to requests for approval: undo windows pass, waits end or escalate, requests are announced, and
//! those that wait are judged anew after policies changed. What is due stands in the file, so a restart misses nothing.

use std::time::Duration;

use wayhold_model::approval::Digest;

use super::approvals::{ApprovalError, Approvals};

/// How often what is due is looked for: an undo window ends at most this much late.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A failure is told once in so many looks.
const TOLD_EVERY: u32 = 240;

/// What is worked on at one look.
pub struct Timed {
    /// The requests; `None` where there never were commands.
    pub approvals: Option<Approvals>,
    /// The destination that they are announced to.
    pub announce_to: Option<String>,
}

/// Looks until `timed` says that the server stops.
pub async fn run(timed: impl Fn() -> Option<Timed>) {
    let mut judged: Option<Digest> = None;
    let mut failures: u32 = 0;
    while let Some(Timed {
        approvals,
        announce_to,
    }) = timed()
    {
        if let Some(approvals) = approvals {
            match look(&approvals, announce_to.as_deref(), &mut judged).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    if failures.is_multiple_of(TOLD_EVERY) {
                        tracing::warn!(%error, "approvals do not follow the time; trying again");
                    }
                    failures += 1;
                }
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(
    approvals: &Approvals,
    announce_to: Option<&str>,
    judged: &mut Option<Digest>,
) -> Result<(), ApprovalError> {
    let stands_for = approvals.gate().book().digest();
    if *judged != Some(stands_for) {
        if let Some(version) = approvals.publish().await? {
            tracing::info!(version, "policies for approvals are in force");
        }
        let again = approvals.reconsider_all().await?;
        if again > 0 {
            tracing::info!(again, "requests for approval were asked again");
        }
        *judged = Some(stands_for);
    }
    while approvals.elapse_due().await? > 0 {}
    if let Some(destination) = announce_to {
        while approvals.announce(destination).await? > 0 {}
    }
    Ok(())
}
