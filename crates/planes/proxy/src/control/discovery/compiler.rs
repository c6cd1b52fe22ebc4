//! Compiles many policies on a thread of their own, which ends afterwards. The control thread accepts connections
//! meanwhile, and workers serve them by the earlier policies.

use std::cell::RefCell;
use std::rc::Rc;
use std::thread;

use tokio::sync::mpsc;

use crate::control::discovery::state::Control;
use crate::registry::{CompilationWork, CompiledPolicies};

/// So often in a row what was compiled may be no longer what is wanted when it is done; then the control thread does it
/// itself, so that policies that change all the time come into force all the same.
const MAX_OVERTAKEN: u32 = 2;

/// See the module.
pub(in crate::control) struct Compiler {
    done: mpsc::UnboundedSender<CompiledPolicies>,
    busy: bool,
    overtaken: u32,
}

impl Compiler {
    /// Creates a compiler; finished work arrives at the receiver.
    pub(in crate::control) fn new() -> (Self, mpsc::UnboundedReceiver<CompiledPolicies>) {
        let (done, heard) = mpsc::unbounded_channel();
        let compiler = Self {
            done,
            busy: false,
            overtaken: 0,
        };
        (compiler, heard)
    }

    /// Returns true while it compiles.
    pub(in crate::control) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Begins; `false` where the caller does better to do it itself.
    pub(in crate::control) fn begin(&mut self, work: CompilationWork) -> bool {
        if self.overtaken >= MAX_OVERTAKEN {
            return false;
        }
        let done = self.done.clone();
        let compile = move || {
            // Without a receiver the process is ending.
            let _ = done.send(work.done());
        };
        self.busy = thread::Builder::new()
            .name("policies".to_owned())
            .spawn(compile)
            .is_ok();
        self.overtaken += u32::from(self.busy);
        self.busy
    }

    /// It is done.
    pub(in crate::control) fn ended(&mut self) {
        self.busy = false;
    }

    /// The wanted policies are in force.
    pub(in crate::control) fn caught_up(&mut self) {
        self.overtaken = 0;
    }
}

/// Publishes the compiled policies and gives back the memory of compiling, which is several times the size of
/// the result.
pub(in crate::control) fn ended(control: &Rc<RefCell<Control>>, done: CompiledPolicies) {
    control.borrow_mut().policies_compiled(done);
    control.borrow().memory.give_back_soon();
}
