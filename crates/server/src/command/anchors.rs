//! Second places for checkpoints: a copy that this server's owner cannot take back is what shows that nothing was cut off
//! and no other history was written. Each place has a task of its own, so that a slow one delays no other and no
//! checkpoint.

mod s3;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use wayhold_model::ledger::Checkpoint;
use wayhold_model::ledger::note::Note;
use wayhold_model::{Clock, Timestamp};

use self::s3::S3;
use crate::blocking::blocking;
use crate::config::{AnchorConfig, AnchorPlace};

/// Longest time that a place may take.
const TIMEOUT: Duration = Duration::from_secs(15);

/// How long a place that failed is left alone.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// A signed checkpoint on its way.
#[derive(Debug)]
struct Offered {
    size: u64,
    text: String,
}

impl Offered {
    /// The name under which it lies there: sorted by name is sorted by age.
    fn name(&self) -> String {
        format!("checkpoint-{:020}", self.size)
    }
}

/// How a place is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorState {
    /// Its name.
    pub name: String,
    /// Records that the last checkpoint put there covers.
    pub size: Option<u64>,
    /// When that was.
    pub at: Option<Timestamp>,
    /// Tries that failed since the start.
    pub failures: u64,
    /// Why the last try failed; `None` once one succeeded.
    pub failure: Option<String>,
}

/// The second places.
pub struct Anchors {
    newest: watch::Sender<Option<Arc<Offered>>>,
    places: Vec<Arc<Place>>,
}

struct Place {
    config: AnchorConfig,
    client: reqwest::Client,
    clock: Arc<dyn Clock>,
    state: Mutex<AnchorState>,
}

impl Anchors {
    /// Begins to serve them, on the current runtime.
    ///
    /// # Errors
    /// The system has no HTTP client.
    pub fn start(configs: &[AnchorConfig], clock: &Arc<dyn Clock>) -> Result<Self, reqwest::Error> {
        let newest = watch::Sender::new(None);
        let mut places = Vec::new();
        for config in configs {
            let place = Arc::new(Place::new(config, Arc::clone(clock))?);
            tokio::spawn(serve(Arc::clone(&place), newest.subscribe()));
            places.push(place);
        }
        Ok(Self { newest, places })
    }

    /// Offers a checkpoint; places that are busy take the newest when they are free again.
    pub fn offer(&self, note: &Note) {
        let Ok(checkpoint) = note.text.parse::<Checkpoint>() else {
            return;
        };
        self.newest.send_replace(Some(Arc::new(Offered {
            size: checkpoint.head.size,
            text: note.to_string(),
        })));
    }

    /// How each of them is.
    pub fn states(&self) -> Vec<AnchorState> {
        self.places.iter().map(|place| place.state()).collect()
    }

    /// What is not as it should be, in sentences.
    pub fn findings(&self) -> Vec<String> {
        let told = |state: AnchorState| {
            let failure = state.failure?;
            Some(format!(
                "ledger.anchors.{}: no checkpoint was put there: {failure}",
                state.name
            ))
        };
        self.states().into_iter().filter_map(told).collect()
    }
}

/// Puts the newest checkpoint into a place, as often as it takes one, until nobody offers any more.
async fn serve(place: Arc<Place>, mut newest: watch::Receiver<Option<Arc<Offered>>>) {
    while newest.changed().await.is_ok() {
        loop {
            let Some(offered) = newest.borrow_and_update().clone() else {
                break;
            };
            wayhold_store::failpoint!("commands.ledger-before-anchoring");
            let put = tokio::time::timeout(TIMEOUT, place.put(&offered)).await;
            let put = put.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")));
            wayhold_store::failpoint!("commands.ledger-anchored");
            place.note(&offered, &put);
            if put.is_ok() {
                tokio::time::sleep(place.config.every).await;
                break;
            }
            tokio::time::sleep(RETRY_AFTER).await;
            if newest.has_changed().is_err() {
                return;
            }
        }
    }
}

impl Place {
    fn new(config: &AnchorConfig, clock: Arc<dyn Clock>) -> Result<Self, reqwest::Error> {
        // Fails only when the process has one already, which is as good.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .timeout(TIMEOUT);
        if !config.place.is_https() {
            // No TLS, no roots: a machine without certificates can still put to its own network.
            client = client.tls_certs_only([]);
        }
        Ok(Self {
            config: config.clone(),
            client: client.build()?,
            clock,
            state: Mutex::new(AnchorState {
                name: config.name.clone(),
                size: None,
                at: None,
                failures: 0,
                failure: None,
            }),
        })
    }

    async fn put(&self, offered: &Arc<Offered>) -> Result<(), String> {
        match &self.config.place {
            AnchorPlace::Folder(folder) => {
                let (folder, offered) = (folder.clone(), Arc::clone(offered));
                blocking(move || put_in(&folder, &offered.name(), &offered.text))
                    .await
                    .map_err(|error| error.to_string())?
                    .map_err(|error| error.to_string())
            }
            AnchorPlace::Http { url, authorization } => {
                let mut url = url.clone();
                if let Ok(mut path) = url.path_segments_mut() {
                    path.pop_if_empty().push(&offered.name());
                }
                let mut request = self
                    .client
                    .put(url)
                    .header("content-type", "text/plain; charset=utf-8")
                    .body(offered.text.clone());
                if let Some(secret) = authorization {
                    request = request.header("authorization", secret.expose());
                }
                let answer = request.send().await;
                let answer = answer.map_err(|error| error.without_url().to_string())?;
                match answer.status() {
                    status if status.is_success() => Ok(()),
                    status => Err(format!("it answered {status}")),
                }
            }
            AnchorPlace::S3(config) => {
                let bucket = S3::new(config);
                bucket
                    .put(&self.client, &offered.name(), &offered.text)
                    .await
            }
        }
    }

    fn note(&self, offered: &Offered, put: &Result<(), String>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let name = &self.config.name;
        match put {
            Ok(()) => {
                if state.failure.take().is_some() {
                    tracing::info!(anchor = %name, "checkpoints are put there again");
                }
                state.size = Some(offered.size);
                state.at = Some(self.clock.now());
            }
            Err(reason) => {
                if state.failure.as_ref() != Some(reason) {
                    tracing::warn!(anchor = %name, %reason, "a checkpoint was not put into a second place");
                }
                state.failures += 1;
                state.failure = Some(reason.clone());
            }
        }
    }

    fn state(&self) -> AnchorState {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone()
    }
}

/// What it means that a second place has a checkpoint of that size which says something else.
fn of_another_history(path: &str) -> String {
    format!(
        "{path}: another checkpoint of the same size lies there: one of two histories is forged, or the data directory \
         was set back"
    )
}

/// Puts a file into a folder. One that is there already and says something else is left as it is: that is what a second
/// place is for.
fn put_in(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = folder.join(name);
    match fs::read_to_string(&path) {
        Ok(there) if there == text => return Ok(()),
        Ok(_) => {
            let path = path.display().to_string();
            return Err(io::Error::other(of_another_history(&path)));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    fs::create_dir_all(folder)?;
    let aside = folder.join(format!(".{name}"));
    let mut file = File::create(&aside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&aside, &path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests;
