//! `examples/gateway-api` does what its page says.

use std::path::Path;

use crate::mesh::{exchange, wait_until};
use crate::up::Up;

fn copied(folder: &Path) {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gateway-api");
    for entry in std::fs::read_dir(example).expect("the example is there") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|end| end == "yaml") {
            let name = path.file_name().expect("a name");
            std::fs::copy(&path, folder.join(name)).expect("copied");
        }
    }
}

#[test]
fn the_example_needs_no_gateway_of_its_own_and_answers_as_its_page_says() {
    let state = tempfile::tempdir().expect("a folder");
    let state = state.path().join("state");
    let state_argument = state.to_string_lossy().into_owned();
    let mut up = Up::start(copied, &["--quiet", "--state", &state_argument]);
    let published = up.ready();
    let at = published["gateway-api/public-voile"];
    let ask = |host: &str, path: &str| {
        let text = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        exchange(at, text.as_bytes()).expect("an answer")
    };
    for (host, path, status) in [
        ("shop.example", "/", 200),
        ("shop.example", "/cart/1", 200),
        ("shop.example", "/cartwheel", 200),
        ("shop.example", "/basket/1", 301),
        ("elsewhere.example", "/", 404),
        ("elsewhere.com", "/", 404),
    ] {
        assert_eq!(ask(host, path).status, status, "{host}{path}");
    }
    let moved = ask("shop.example", "/basket/1");
    let to = "location: http://shop.example:8080/cart/1";
    assert!(moved.head.to_lowercase().contains(to), "{}", moved.head);
    // A route broken at run time is reported with its place, and answered 500 until it is mended.
    up.edit("routes.yaml", "name: cart", "name: checkout");
    wait_until("nobody to ask", || {
        ask("shop.example", "/cart/1").status == 500
    });
    wait_until("the reason", || {
        up.text("err")
            .contains("gateway-api/checkout, which does not exist")
    });
    assert_eq!(ask("shop.example", "/").status, 200);
    let status = || {
        let text = std::fs::read_to_string(state.join("gateway-api-status.yaml"));
        text.unwrap_or_default()
    };
    let broken = r#""reason":"BackendNotFound","status":"False","type":"ResolvedRefs""#;
    wait_until("the condition", || status().contains(broken));
    up.edit("routes.yaml", "name: checkout", "name: cart");
    wait_until("the mended route", || {
        ask("shop.example", "/cart/1").status == 200
    });
    let programmed = r#""reason":"Programmed","status":"True","type":"Programmed""#;
    wait_until("the condition of the mended", || {
        !status().contains(broken) && status().contains(programmed)
    });
}

#[test]
fn a_folder_in_which_a_backend_is_missing_runs_and_says_so() {
    let state = tempfile::tempdir().expect("a folder");
    let state = state.path().join("state");
    let state_argument = state.to_string_lossy().into_owned();
    let broken = |folder: &Path| {
        copied(folder);
        let routes = folder.join("routes.yaml");
        let text = std::fs::read_to_string(&routes).expect("routes");
        std::fs::write(routes, text.replace("name: cart\n", "name: checkout\n")).expect("written");
    };
    let mut up = Up::start(broken, &["--quiet", "--state", &state_argument]);
    let at = up.ready()["gateway-api/public-voile"];
    let ask = |path: &str| {
        let text =
            format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n");
        exchange(at, text.as_bytes()).expect("an answer").status
    };
    assert_eq!((ask("/"), ask("/cart/1")), (200, 500));
    let told = up.text("err");
    assert!(
        told.contains("gateway-api/checkout, which does not exist"),
        "{told}"
    );
    let said = std::fs::read_to_string(state.join("gateway-api-status.yaml")).expect("a status");
    let condition = r#""reason":"BackendNotFound","status":"False","type":"ResolvedRefs""#;
    assert!(said.contains(condition), "{said}");
}
