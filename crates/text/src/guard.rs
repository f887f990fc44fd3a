//! Calls into dependencies that panic on some hostile files and texts: the panic becomes an error.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread is inside a call whose panic this crate turns into an [`Error`](crate::Error).
///
/// For a program's panic hook: it runs before the panic is caught, and should stay silent here.
pub fn is_guarded() -> bool {
    // A hook may run while the thread's variables go away; nothing is guarded then.
    DEPTH.try_with(Cell::get).is_ok_and(|depth| depth > 0)
}

/// Runs a call; if it panics, an error with the panic's words. `what` is the subject of that sentence.
/// What the call left half done must not be used again, which holds for calls that share nothing mutable.
pub(crate) fn guard<T>(what: &str, call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let _guarded = Guarded::enter();
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        Err(format!("{what} gave up: {words}"))
    })
}

/// The thread is guarded while this lives; calls may nest.
struct Guarded;

impl Guarded {
    fn enter() -> Guarded {
        DEPTH.set(DEPTH.get() + 1);
        Guarded
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_hook_can_tell_guarded_calls() {
        assert!(!is_guarded());
        let error = guard("it", || -> Result<(), String> {
            assert_eq!(guard("inner", || Ok(is_guarded())), Ok(true));
            assert!(is_guarded());
            panic!("out of {}", "luck")
        });
        assert_eq!(error, Err("it gave up: out of luck".into()));
        assert!(!is_guarded());
    }
}
