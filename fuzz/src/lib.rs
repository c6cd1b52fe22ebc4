//! Properties that must hold for any bytes that a stranger may send, as functions that panic when they do not. A
//! fuzzer looks for inputs (`drivers/`), and an ordinary test replays every input worth keeping (`corpus/`).

mod authorization;
mod detection;
mod dns;
mod http;
mod identity;
mod logs;
mod proxy_header;
mod request_token;
mod resources;
mod revocation;
mod trace;
mod wire;
mod zds;

use http::{chunked, hbone, http1, http2, http3, page};

/// A property: takes any bytes, panics when something that must hold does not.
pub type Property = fn(&[u8]);

/// Every property with the name of its corpus folder and its driver.
pub const PROPERTIES: &[(&str, Property)] = &[
    ("http1_request", http1::request),
    ("http1_response", http1::response),
    ("chunked", chunked::any_split),
    ("page_answer", page::any_split),
    ("http2_frames", http2::any_split),
    ("http2_hpack", http2::hpack),
    ("http3_frames", http3::frames),
    ("http3_qpack", http3::qpack),
    ("hbone_connect", hbone::head_of_connect),
    ("zds_message", zds::message),
    ("detection", detection::decided_once),
    ("client_hello", detection::client_hello),
    ("proxy_header", proxy_header::decided_once),
    ("dns_question", dns::question),
    ("dns_answer", dns::answer),
    ("trace_context", trace::context),
    ("log_text", logs::text),
    ("log_json", logs::json),
    ("log_filter", logs::filter),
    ("resources", resources::yaml),
    ("wire", wire::message),
    ("certificate", identity::certificate),
    ("certificate_request", identity::request),
    ("token", identity::token),
    ("request_token", request_token::request),
    ("key_set", request_token::keys),
    ("revocation_list", revocation::list),
    ("authorization_path", authorization::path),
    ("authorization_decision", authorization::decision),
    ("agent_frame", voile_lab::any_frame),
];

/// The property of that name.
///
/// # Panics
/// There is none.
pub fn property(name: &str) -> Property {
    let found = PROPERTIES.iter().find(|(known, _)| *known == name);
    found.expect("invariant: drivers name properties").1
}
