//! The page `/tap`: finished requests and connections for people who watch. The workers record them only while somebody asks.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use http::StatusCode;
use voile_telemetry::admin::{PageRequest, PageResponse};
use voile_telemetry::tap::{Tap, TapQuestion};

use crate::control::sockets;
use crate::control::state::Control;

pub(in crate::control) async fn page(
    control: Rc<RefCell<Control>>,
    question: &PageRequest,
) -> PageResponse {
    let question = match TapQuestion::parse(question) {
        Ok(question) => question,
        Err(reason) => return PageResponse::text(StatusCode::BAD_REQUEST, reason + "\n"),
    };
    let known = control.borrow().recorders.tap.clone();
    let tap = known.clone().unwrap_or_default();
    if let Err(reason) = tap.begin(&question) {
        return PageResponse::text(StatusCode::TOO_MANY_REQUESTS, reason + "\n");
    }
    if known.is_none() {
        control.borrow_mut().set_tap(Some(Arc::clone(&tap)));
        tokio::task::spawn_local(end(control, Arc::clone(&tap)));
    }
    PageResponse::json(tap.answer(&question).await)
}

/// Stops the records when the last session has ended.
async fn end(control: Rc<RefCell<Control>>, tap: Arc<Tap>) {
    while let Some(end) = tap.next_end() {
        sockets::until(Some(end)).await;
    }
    control.borrow_mut().set_tap(None);
}
