//! Compilation of grammars on a thread of its own.

use crate::driver::{Event, Events};
use calla_engine::{Grammar, Matcher, RequestId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};

/// Compiles a grammar, or says why it cannot.
pub type Compile = Box<dyn FnMut(&Grammar) -> Result<Box<dyn Matcher>, String> + Send>;

/// The thread; it ends with this value.
pub(crate) struct Grammars {
    jobs: Sender<(RequestId, Grammar)>,
}

impl Grammars {
    pub(crate) fn start(mut compile: Compile, events: Events) -> std::io::Result<Self> {
        let (jobs, queue) = channel::<(RequestId, Grammar)>();
        std::thread::Builder::new().name("calla-grammar".into()).spawn(move || {
            for (id, grammar) in queue {
                // A panic is a bug of the compiler, but one request's: the thread goes on for others.
                let result = catch_unwind(AssertUnwindSafe(|| compile(&grammar)))
                    .unwrap_or_else(|_| Err("the grammar brought its compiler down".to_owned()));
                if !events.send(Event::Compiled { id, result }) {
                    return;
                }
            }
        })?;
        Ok(Self { jobs })
    }

    pub(crate) fn compile(&self, id: RequestId, grammar: Grammar) {
        // The thread ends only after this value.
        self.jobs.send((id, grammar)).expect("the thread of the grammars runs");
    }
}
