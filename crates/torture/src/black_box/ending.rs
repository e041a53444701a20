//! How something ends that is tried and does not come to its end. A finding is what a check of the harness says
//! in words and throws by `broken`; a panic that nobody meant says nothing of the product, only that the harness
//! got no further.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::thread::JoinHandle;

/// Why it did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A promise broke; what was found.
    Broken(String),
    /// Too little happened, or what it needs is not there.
    Invalid(String),
    /// The harness met what it does not expect, and stopped there.
    Stopped(String),
}

/// Ends what is tried with a finding: a promise is broken.
pub fn broken(what: &str) -> ! {
    println!("broken: {what}");
    panic_any(Ending::Broken(what.to_owned()))
}

/// Ends what is tried and says nothing of the product: too little happened, or what it needs is not there.
pub fn invalid(why: &str) -> ! {
    println!("invalid: {why}");
    panic_any(Ending::Invalid(why.to_owned()))
}

/// Runs it; how it ended where that was not its end.
///
/// # Errors
/// What was thrown, and by whom.
pub fn attempt<T>(run: impl FnOnce() -> T) -> Result<T, Ending> {
    catch_unwind(AssertUnwindSafe(run)).map_err(told)
}

/// Joins a thread, and ends as it did.
pub fn joined<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|thrown| resume_unwind(thrown))
}

fn told(thrown: Box<dyn Any + Send>) -> Ending {
    let words = |thrown: &dyn Any| {
        let owned = thrown.downcast_ref::<String>().cloned();
        owned.or_else(|| thrown.downcast_ref::<&str>().map(|&words| words.to_owned()))
    };
    match thrown.downcast::<Ending>() {
        Ok(ending) => *ending,
        Err(panic) => {
            Ending::Stopped(words(&*panic).unwrap_or_else(|| "a panic without words".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_check_says_is_told_from_a_harness_that_stops() {
        assert_eq!(attempt(|| 3), Ok(3));
        let lost = || broken("an event is lost");
        let found = Ending::Broken("an event is lost".to_owned());
        assert_eq!(attempt::<()>(lost), Err(found.clone()));
        let little = Ending::Invalid("too little".to_owned());
        assert_eq!(attempt::<()>(|| invalid("too little")), Err(little));
        let stopped = attempt(|| "no number".parse::<u64>().unwrap());
        assert!(matches!(stopped, Err(Ending::Stopped(_))), "{stopped:?}");
        let stopped = attempt(|| assert_eq!(1 + 1, 3, "of the harness"));
        assert!(matches!(stopped, Err(Ending::Stopped(_))), "{stopped:?}");
        // From whichever thread it comes.
        let elsewhere = attempt(|| joined(std::thread::spawn(lost)));
        assert_eq!(elsewhere, Err::<(), _>(found));
    }
}
