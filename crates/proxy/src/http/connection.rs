//! One downstream connection: requests in order, one at a time, until either side has had enough.

use std::rc::Rc;

use super::io::Io;
use super::role::HttpRole;
use super::worker::{ConnectionEnd, HttpWorker};

pub(crate) struct Connection<'a, S, R: HttpRole> {
    worker: &'a Rc<HttpWorker<R>>,
    role: &'a R,
    stream: S,
}

impl<'a, S: Io, R: HttpRole> Connection<'a, S, R> {
    pub(crate) fn new(
        worker: &'a Rc<HttpWorker<R>>,
        role: &'a R,
        stream: S,
        _early: &[u8],
    ) -> Self {
        Self {
            worker,
            role,
            stream,
        }
    }

    pub(crate) async fn serve(self) -> ConnectionEnd {
        ConnectionEnd::Clean
    }
}
