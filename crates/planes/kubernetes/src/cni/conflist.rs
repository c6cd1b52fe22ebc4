//! Edits of a configuration list (`*.conflist`) of the CNI: pure functions from text to text.

use serde_json::{Value, json};

use super::{PLUGIN, PluginConfig};

/// The list with our plugin at its end, as `config` says; `None` if it is like that already.
///
/// # Errors
/// The text is no configuration list.
pub(super) fn with_plugin(text: &str, config: &PluginConfig) -> Result<Option<String>, String> {
    let wanted = json!(config);
    edit(text, |plugins| plugins.push(wanted))
}

/// The list without our plugin; `None` if it has none.
///
/// # Errors
/// The text is no configuration list.
pub(super) fn without_plugin(text: &str) -> Result<Option<String>, String> {
    edit(text, |_| {})
}

fn edit(text: &str, add: impl FnOnce(&mut Vec<Value>)) -> Result<Option<String>, String> {
    let before: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut list = before.clone();
    let plugins = list.get_mut("plugins").and_then(Value::as_array_mut);
    let plugins = plugins.ok_or("it has no list `plugins`")?;
    plugins.retain(|plugin| plugin["type"] != PLUGIN);
    if plugins.is_empty() {
        return Err("its list `plugins` has no primary plugin".to_owned());
    }
    add(plugins);
    if list == before {
        return Ok(None);
    }
    let mut text = serde_json::to_string_pretty(&list).map_err(|error| error.to_string())?;
    text.push('\n');
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> PluginConfig {
        PluginConfig::new(
            "/run/voile/cni.sock".into(),
            "/etc/cni/net.d/kubeconfig".into(),
            ("istio-system", "voile-node-"),
            true,
        )
    }

    #[test]
    fn the_plugin_comes_last_once_and_goes_without_a_trace() {
        let primary = r#"{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#;
        let with = with_plugin(primary, &config())
            .expect("a list")
            .expect("a change");
        let read: Value = serde_json::from_str(&with).expect("JSON");
        assert_eq!(read["plugins"][0]["type"], "bridge");
        assert_eq!(read["plugins"][1]["type"], PLUGIN);
        assert_eq!(read["plugins"][1]["socket"], "/run/voile/cni.sock");
        assert_eq!(with_plugin(&with, &config()), Ok(None));
        let without = without_plugin(&with).expect("a list").expect("a change");
        let read: Value = serde_json::from_str(&without).expect("JSON");
        assert_eq!(
            read,
            serde_json::from_str::<Value>(primary).expect("the same")
        );
        assert_eq!(without_plugin(primary), Ok(None));
    }

    #[test]
    fn what_is_no_list_is_refused_with_a_reason() {
        for (text, reason) in [
            ("{", "EOF"),
            (r#"{"type": "bridge"}"#, "no list `plugins`"),
            (r#"{"plugins": []}"#, "no primary plugin"),
            (
                r#"{"plugins": [{"type": "voile-cni"}]}"#,
                "no primary plugin",
            ),
        ] {
            let error = with_plugin(text, &config()).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
