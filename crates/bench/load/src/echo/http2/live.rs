//! gRPC methods of the echo server that answer while their client still talks: messages sent back one by one, reflection, and
//! watching health.

use super::{INTERNAL, SERVING, UNIMPLEMENTED, end_call, path, reflection};
use crate::echo::plan::ResponsePlan;
use crate::grpc;
use crate::http2::Http2Server;

/// Reports if the method is a live stream: echo stream, health watch or reflection.
pub(super) fn speaks(path: &[u8]) -> bool {
    path == grpc::ECHO_STREAM.as_bytes() || path == grpc::HEALTH_WATCH.as_bytes() || reflects(path)
}

fn reflects(path: &[u8]) -> bool {
    grpc::REFLECTION
        .iter()
        .any(|method| method.as_bytes() == path)
}

/// Answers the messages that have come.
pub(super) fn answer(server: &mut Http2Server, lane: usize, plan: &ResponsePlan) {
    let failing = plan.grpc_status.pick(fastrand::f64);
    if failing != 0 && !server.begun(lane) {
        return end_call(server, lane, failing, "as asked for");
    }
    let came = server.take_messages(lane);
    let stream = server.stream(lane);
    let torn = stream.messages.torn();
    let path = path(&stream.target);
    let mut answer = Vec::new();
    let mut end = None;
    if grpc::compressed(&came) {
        end = Some((UNIMPLEMENTED, "compressed messages are not served"));
    } else if reflects(path) {
        for question in grpc::messages(&came) {
            match reflection::answer(question) {
                Some(told) => grpc::put_message(&mut answer, &told),
                None => end = Some((INTERNAL, "not a reflection request")),
            }
        }
    } else if path == grpc::HEALTH_WATCH.as_bytes() {
        // The stream stays open until its client leaves: the health never changes.
        if server.listened(lane) {
            grpc::put_message(&mut answer, SERVING);
        }
        return server.speak(lane, &plan.headers, &answer, None);
    } else {
        answer = came;
    }
    if server.listened(lane) {
        end = end.or(Some((0, "")));
    } else if torn && server.ended(lane) {
        end = Some((INTERNAL, "the last message is not whole"));
    }
    server.speak(lane, &plan.headers, &answer, end);
}
