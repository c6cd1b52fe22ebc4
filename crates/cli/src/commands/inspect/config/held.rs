//! The administration page of a proxy as text: what the proxy holds and whether it is in force.

use serde_json::Value;

use crate::commands::inspect::monitoring::{table, word};

/// Lists of the page, and what a row of each is called.
const LISTS: [(&str, &str); 7] = [
    ("services", "service"),
    ("workloads", "workload"),
    ("service_policies", "service policy"),
    ("routes", "routes"),
    ("authorization_policies", "authorization"),
    ("request_authentications", "authentication"),
    ("policies", "policy"),
];

pub(super) fn text(page: &Value) -> String {
    if page.get("configs").is_some() {
        return "the proxy is an Envoy: -o json prints its page, and istioctl proxy-config shows it\n"
            .to_owned();
    }
    let mut text = String::new();
    if let Some(control) = page.get("control_plane") {
        text += &match control["connected"] == true {
            true => format!("connected to {}\n", word(control, "address")),
            false => format!(
                "not connected: {}; what the proxy holds stays in force\n",
                word(control, "last_error")
            ),
        };
    }
    if page["in_force"] == false {
        let waiting: Vec<&str> = list(&page["waiting_for"])
            .filter_map(Value::as_str)
            .collect();
        text += &format!("not in force yet: waiting for {}\n", waiting.join(", "));
    }
    for listener in list(&page["listeners"]).filter(|one| one["error"].is_string()) {
        let (name, error) = (word(listener, "name"), word(listener, "error"));
        text += &format!("listener {name} failed: {error}\n");
    }
    let own = page.get("configuration").filter(|own| own.is_object());
    let own = own.map(|own| row("configuration", own));
    let rows = LISTS.iter().flat_map(|(field, name)| {
        let rows = list(&page[*field]);
        rows.map(|one| row(name, one))
    });
    let rows: Vec<_> = own.into_iter().chain(rows).collect();
    text + &table(&["TYPE", "NAME", "VERSION", "DETAIL"], &rows)
}

fn row(kind: &str, resource: &Value) -> Vec<String> {
    let name = match resource.as_str() {
        Some(name) => name,
        None => word(resource, "resource"),
    };
    let addresses = list(&resource["addresses"]).filter_map(Value::as_str);
    let identity = resource["identity"].as_str();
    let detail: Vec<&str> = addresses.chain(identity).collect();
    let (version, detail) = (word(resource, "version"), detail.join(" "));
    [kind, name, version, &detail].map(str::to_owned).to_vec()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_is_a_table_with_what_is_wrong_above_it() {
        let mut page = json!({
            "control_plane": {"connected": true, "address": "10.0.0.1:15012"},
            "in_force": true,
            "configuration": {"resource": "shop/web-1", "version": "3"},
            "services": [{"resource": "shop/web.shop.svc.cluster.local", "version": "2", "addresses": ["10.96.0.7"]}],
            "workloads": [{"resource": "Kubernetes//Pod/shop/web-1", "version": "1", "addresses": ["10.0.0.3"],
                "identity": "spiffe://cluster.local/ns/shop/sa/web"}],
        });
        let rows = "TYPE           NAME                             VERSION  DETAIL\n\
             configuration  shop/web-1                       3\n\
             service        shop/web.shop.svc.cluster.local  2        10.96.0.7\n\
             workload       Kubernetes//Pod/shop/web-1       1        10.0.0.3 spiffe://cluster.local/ns/shop/sa/web\n";
        assert_eq!(text(&page), format!("connected to 10.0.0.1:15012\n{rows}"));
        page["control_plane"] = json!({"connected": false, "last_error": "refused"});
        page["in_force"] = json!(false);
        page["waiting_for"] = json!(["Address"]);
        page["listeners"] =
            json!([{"name": "in", "error": "in use"}, {"name": "out", "error": null}]);
        assert_eq!(
            text(&page),
            format!(
                "not connected: refused; what the proxy holds stays in force\n\
                 not in force yet: waiting for Address\nlistener in failed: in use\n{rows}"
            )
        );
        assert!(text(&json!({"configs": []})).contains("an Envoy"));
    }
}
