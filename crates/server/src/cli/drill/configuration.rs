//! The throw-away server's configuration: everything as it is by default, but for the durations of its one
//! destination, which are divided.

use std::path::Path;
use std::time::Duration;

use wayhold_model::backoff::Waits;

use super::super::exit::{Exit, Failure};
use super::plan::Plan;
use crate::config::destination::DeliveryPolicy;
use crate::config::quantity::show_duration;
use crate::config::{self, Environment, Overrides};

/// Name of the destination that is taken away.
pub const DESTINATION: &str = "receiver";

/// More than any disk has free: with it the server finds its disk too full.
const MORE_THAN_ANY_DISK: &str = "[store]\nmin_free = \"1048576 GiB\"\n";

/// How much room the server is to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// What there is.
    Usual,
    /// Too little to accept.
    None,
}

/// Makes configurations of one drill.
#[derive(Debug)]
pub struct Configuration {
    listen: String,
    url: String,
    durations: String,
    longest_wait: Duration,
}

impl Configuration {
    /// For a server on `listen` that sends to `url`. `scratch` is a file that may be written.
    ///
    /// # Errors
    /// When the defaults cannot be read.
    pub fn new(listen: &str, url: &str, plan: &Plan, scratch: &Path) -> Result<Self, Failure> {
        let mut configuration = Self {
            listen: listen.to_owned(),
            url: url.to_owned(),
            durations: String::new(),
            longest_wait: Duration::ZERO,
        };
        let usual = configuration.usual(scratch)?;
        configuration.durations = divided(&usual, plan);
        configuration.longest_wait = plan
            .divided(longest(&usual.retry.patience.waits) + usual.breaker.open_max + usual.timeout);
        Ok(configuration)
    }

    /// How long nothing may arrive although everything is well: a breaker's wait, one between attempts, and
    /// an attempt.
    pub fn longest_wait(&self) -> Duration {
        self.longest_wait
    }

    /// The text.
    pub fn text(&self, room: Room) -> String {
        let Self {
            listen,
            url,
            durations,
            longest_wait: _,
        } = self;
        let room = match room {
            Room::Usual => "",
            Room::None => MORE_THAN_ANY_DISK,
        };
        format!(
            "data = \"data\"\nlisten = [\"{listen}\"]\n{room}[[routes]]\nto = [\"{DESTINATION}\"]\n\
             [destinations.{DESTINATION}]\nkind = \"webhook\"\nurl = \"{url}\"\n\
             allow_networks = [\"127.0.0.0/8\"]\n{durations}"
        )
    }

    /// What everybody gets who says nothing.
    fn usual(&self, scratch: &Path) -> Result<DeliveryPolicy, Failure> {
        let unusable = |what: &dyn std::fmt::Display| {
            Failure::new(
                Exit::Failed,
                format!("the drill's configuration cannot be made: {what}"),
            )
        };
        std::fs::write(scratch, self.text(Room::Usual)).map_err(|error| unusable(&error))?;
        let loaded = config::load(
            Some(scratch),
            &Overrides::default(),
            &Environment::default(),
        );
        let loaded = loaded.map_err(|problems| unusable(&problems))?;
        let destination = loaded.config.destinations.into_iter().next();
        destination
            .map(|destination| destination.delivery)
            .ok_or_else(|| unusable(&"it has no destination"))
    }
}

fn divided(usual: &DeliveryPolicy, plan: &Plan) -> String {
    let show = |duration| show_duration(plan.divided(duration));
    let (waits, breaker) = (&usual.retry.patience.waits, &usual.breaker);
    format!(
        "timeout = \"{}\"\nretry = {{ base = \"{}\", cap = \"{}\" }}\n\
         breaker = {{ open = \"{}\", open_max = \"{}\" }}\n",
        show(usual.timeout),
        show(first(waits)),
        show(longest(waits)),
        show(breaker.open),
        show(breaker.open_max),
    )
}

/// The longest wait that may follow the first attempt: the base of waits that double.
fn first(waits: &Waits) -> Duration {
    waits.range(1).1
}

/// The longest wait at all.
fn longest(waits: &Waits) -> Duration {
    waits.range(u32::MAX).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_of_the_destination_is_divided_and_nothing_else_differs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = |speed| {
            let plan = Plan::new(Duration::from_secs(3_600), speed, 1).unwrap();
            let url = "http://127.0.0.1:9/events";
            let configuration = Configuration::new("127.0.0.1:0", url, &plan, file.path()).unwrap();
            configuration.usual(file.path()).unwrap()
        };
        let (usual, fast) = (of(1), of(100));
        let durations = |policy: &DeliveryPolicy| {
            [
                policy.timeout,
                first(&policy.retry.patience.waits),
                longest(&policy.retry.patience.waits),
                policy.breaker.open,
                policy.breaker.open_max,
            ]
        };
        assert_eq!(durations(&usual).map(|usual| usual / 100), durations(&fast));
        assert_eq!(
            (usual.concurrency, usual.breaker.failures, usual.on_failure),
            (fast.concurrency, fast.breaker.failures, fast.on_failure)
        );
    }

    #[test]
    fn a_server_without_room_is_configured_so() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let plan = Plan::new(Duration::from_secs(1), 1, 1).unwrap();
        let url = "http://127.0.0.1:9/events";
        let made = Configuration::new("127.0.0.1:0", url, &plan, file.path()).unwrap();
        std::fs::write(file.path(), made.text(Room::None)).unwrap();
        let none = Environment::default();
        let loaded = config::load(Some(file.path()), &Overrides::default(), &none).unwrap();
        assert_eq!(loaded.config.store.min_free, Some(1 << 50));
    }
}
