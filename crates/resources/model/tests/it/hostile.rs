//! Text made to hurt: bombs, depth, size, cycles, garbage. Each must give an error, quickly, and hide nothing else.

use crate::{check_text, render};

const GOOD: &str = "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: good}\n";

/// The bad document gives an error with this code, and the good one after it is in force.
fn refused(bad: &str, code: &str) {
    let (mesh, diagnostics) = check_text(&format!("{bad}{GOOD}"));
    assert!(
        diagnostics.iter().any(|d| d.code == code),
        "wanted {code}, got {}",
        render(&diagnostics)
    );
    assert_eq!(mesh.namespaces.len(), 1, "the good document is hidden");
    assert!(
        render(&diagnostics).len() < 200_000,
        "the answer to a hostile document is itself huge"
    );
}

#[test]
fn an_alias_bomb_is_refused_before_it_is_built() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    refused(&bomb, "V0003");
}

#[test]
fn deep_nesting_is_refused() {
    refused(&format!("a: {}", "[".repeat(100_000)), "V0003");
    refused(&format!("a: {}", "{a: ".repeat(100_000)), "V0003");
    let steps: String = (0..200)
        .map(|depth| format!("{}a:\n", " ".repeat(depth)))
        .collect();
    refused(&steps, "V0003");
    refused(&format!("a: {}x", "- ".repeat(5000)), "V0002");
}

#[test]
fn a_huge_document_is_refused_and_a_million_characters_are_read() {
    refused(&format!("a: {}", "x".repeat(4 << 20)), "V0003");
    let (mesh, diagnostics) = check_text(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: big}}\ndata: {{a: \"{}\"}}\n",
        "x".repeat(1_000_000)
    ));
    assert!(diagnostics.is_empty(), "{}", render(&diagnostics));
    assert_eq!(mesh.config_maps.len(), 1);
}

#[test]
fn a_million_characters_in_a_name_are_not_repeated() {
    let long = "x".repeat(1_000_000);
    refused(
        &format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {long}}}\n"),
        "V0104",
    );
    refused(
        &format!("apiVersion: v1\nkind: {long}\nmetadata: {{name: a}}\n"),
        "V0108",
    );
    refused(
        &format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: a, \"{}\": 1}}\n",
            &long[..1000]
        ),
        "V0101",
    );
    // A key of more than 1,024 characters needs a `?` before it, as in Kubernetes' decoder.
    refused(
        &format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a, \"{long}\": 1}}\n"),
        "V0002",
    );
}

#[test]
fn ten_thousand_mistakes_in_one_document_are_summed_up() {
    let fields: String = (0..10_000).map(|n| format!("  field{n}: 1\n")).collect();
    refused(
        &format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n{fields}"),
        "V0101",
    );
}

#[test]
fn garbage_is_refused() {
    refused("\u{0}\u{1}\u{2}", "V0002");
    refused("%YAML 9.9\n--- ]", "V0002");
    refused("? {a: b}\n: c", "V0005");
    refused("{]", "V0002");
    refused("&a *a", "V0002");
}

#[test]
fn names_in_odd_letters_are_refused_and_shown_harmlessly() {
    let (_, diagnostics) =
        check_text("apiVersion: v1\nkind: Service\nmetadata: {name: \"a\\u202Eb\\u001b[31m\"}\n");
    let shown = render(&diagnostics);
    assert!(
        shown.contains("\\u{202e}") && shown.contains("\\u{1b}"),
        "{shown}"
    );
    assert!(!shown.contains('\u{1b}') && !shown.contains('\u{202e}'));
}

#[test]
fn any_prefix_of_a_good_file_is_survived() {
    let text = include_str!("good.yaml");
    for end in (0..text.len())
        .step_by(3)
        .filter(|end| text.is_char_boundary(*end))
    {
        check_text(&text[..end]);
    }
}

#[test]
fn any_file_with_one_byte_changed_is_survived() {
    let text = include_str!("good.yaml");
    // Longer than all other tests here together, so it takes what processors there are.
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for first in 0..workers {
            scope.spawn(move || {
                for at in (first..text.len()).step_by(workers) {
                    survives_changes(text, at);
                }
            });
        }
    });
}

fn survives_changes(text: &str, at: usize) {
    // One of these at each place, another at the next: all of them everywhere takes a minute.
    let bytes = *b"\t[{&*!|>'\"%@`:-#0\n\0";
    for byte in [bytes[at % bytes.len()], bytes[(at / 2) % bytes.len()]] {
        let mut bytes = text.as_bytes().to_vec();
        bytes[at] = byte;
        if let Ok(text) = String::from_utf8(bytes) {
            check_text(&text);
        }
    }
}

#[test]
fn a_service_entry_of_tens_of_thousands_of_ports_is_checked_in_linear_time() {
    let ports: String = (0..30_000)
        .map(|n| format!("  - {{number: {}, name: p{n}}}\n", n % 65_000 + 1))
        .collect();
    let names: String = (0..30_000).map(|n| format!("q{n}: 1, ")).collect();
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: a}}\nspec:\n  hosts: [a.example]\n  \
         resolution: STATIC\n  ports:\n{ports}  endpoints: [{{address: 10.0.0.1, ports: {{{names}}}}}]\n"
    );
    refused(&text, "V0112");
}

#[test]
fn an_error_after_a_hundred_warnings_is_told() {
    let endpoint = |index| format!("  - {{addresses: [10.0.0.{index}], hostname: h}}\n");
    let endpoints: String = (1..150).map(endpoint).collect();
    let text = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: a}}\naddressType: IPv4\n\
         endpoints:\n{endpoints}  - {{addresses: [x]}}\n"
    );
    refused(&text, "V0104");
}
