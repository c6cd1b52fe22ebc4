//! Status page of a control plane, as far as `voile up` shows it: the configuration and its proxies. Only the control
//! plane decides what is in force. This module reads the page and joins it with the proxies that this run has
//! started.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Age at which a page's proxies no longer count: longer than a control plane takes to start again.
const FRESH: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlPage {
    /// When it answered.
    pub at: Instant,
    /// By folder, the digest of the files that it obeys.
    read: BTreeMap<PathBuf, String>,
    /// Everything is acknowledged by every proxy that is connected here.
    everywhere: bool,
    /// `namespace/name` of the proxies that acknowledged all that concerns them.
    synced: BTreeSet<String>,
    /// Refusals by proxies, in words.
    refusals: Vec<String>,
    /// Problems that keep configuration out of force, in words.
    problems: Vec<String>,
    /// Reason why its state folder was lost.
    state_lost: Option<String>,
}

impl ControlPage {
    /// Reads `/debug/status`.
    pub fn parse(page: &[u8], at: Instant) -> Option<Self> {
        let page: Value = serde_json::from_slice(page).ok()?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let proxies = list(&page["proxies"]);
        let synced = proxies.iter().filter(|proxy| proxy["synced"] == true);
        let read = page["read"].as_object()?.iter();
        let read = read.filter_map(|(folder, of)| Some((folder.into(), of.as_str()?.to_owned())));
        let problems = list(&page["documents"]["problems"]);
        let refusals = list(&page["in_force"]["refused"]);
        Some(Self {
            at,
            read: read.collect(),
            everywhere: page["in_force"]["everywhere"] == true,
            synced: synced.filter_map(|proxy| name_of(&proxy["node"])).collect(),
            refusals: refusals.iter().map(refusal).collect(),
            problems: problems
                .iter()
                .filter_map(|one| one.as_str().map(str::to_owned))
                .collect(),
            state_lost: page["state_lost"].as_str().map(str::to_owned),
        })
    }
}

/// Returns `namespace/name` of the pod in a proxy's node id: `sidecar~ADDRESS~NAME.NAMESPACE~DOMAIN`.
fn name_of(node: &Value) -> Option<String> {
    let (name, namespace) = node.as_str()?.split('~').nth(2)?.rsplit_once('.')?;
    Some(format!("{namespace}/{name}"))
}

fn refusal(one: &Value) -> String {
    let text = |key: &str| one[key].as_str().unwrap_or_default();
    let proxy = name_of(&one["proxy"]).unwrap_or_else(|| text("proxy").to_owned());
    let kind = text("type").rsplit('.').next().unwrap_or_default();
    let resource = match text("resource") {
        "" => String::new(),
        name => format!(" `{name}`"),
    };
    let why = text("reason");
    format!("the proxy of {proxy} refuses {kind}{resource}: {why}")
}

/// Status pages of all control planes of the mesh.
#[derive(Debug, Clone, Default)]
pub struct ControlPages(pub Vec<Option<ControlPage>>);

/// State of an edit.
#[derive(Debug, PartialEq, Eq)]
pub enum EditStatus {
    /// All these proxies have acknowledged it.
    InForce(usize),
    /// Some refuse it, which `refusals` tells.
    Refused,
    /// It is on its way, and this is waited for.
    Waiting(String),
}

impl ControlPages {
    fn fresh(&self, now: Instant) -> impl Iterator<Item = &ControlPage> {
        let all = self.0.iter().flatten();
        all.filter(move |page| now.duration_since(page.at) < FRESH)
    }

    /// Returns true if a proxy has acknowledged everything that concerns it.
    pub fn has_acknowledged(&self, proxy: &str, now: Instant) -> bool {
        self.fresh(now).any(|page| page.synced.contains(proxy))
    }

    /// Returns the refusals by proxies, each once.
    pub fn refusals(&self) -> BTreeSet<String> {
        let all = self.0.iter().flatten();
        all.flat_map(|page| page.refusals.iter().cloned()).collect()
    }

    /// Returns other configuration that is not in force, and problems of control planes.
    pub fn problems(&self) -> BTreeSet<String> {
        let problem = |page: &ControlPage| {
            let lost = page.state_lost.iter().cloned();
            let others = page.problems.iter();
            let others = others.map(|problem| format!("not in force: {problem}"));
            lost.chain(others).collect::<Vec<_>>()
        };
        self.0.iter().flatten().flat_map(problem).collect()
    }

    /// Reports if the content of these folders is in force at these proxies.
    pub fn verdict(
        &self,
        folders: &BTreeMap<PathBuf, String>,
        proxies: &BTreeSet<String>,
        now: Instant,
    ) -> EditStatus {
        let waiting = |what: &str| EditStatus::Waiting(what.to_owned());
        if self.0.is_empty() || self.fresh(now).count() < self.0.len() {
            return waiting("the control plane to answer");
        }
        let obeys = |page: &ControlPage| {
            let mut all = folders.iter();
            all.all(|(folder, digest)| page.read.get(folder) == Some(digest))
        };
        if !self.fresh(now).all(obeys) {
            return waiting("the control plane to read it");
        }
        if self.fresh(now).any(|page| !page.refusals.is_empty()) {
            return EditStatus::Refused;
        }
        let missing = |proxy: &&String| !self.has_acknowledged(proxy, now);
        if let Some(proxy) = proxies.iter().find(missing) {
            return EditStatus::Waiting(format!("the proxy of {proxy} to acknowledge it"));
        }
        match self.fresh(now).all(|page| page.everywhere) {
            true => EditStatus::InForce(proxies.len()),
            false => waiting("a proxy to acknowledge it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(change: impl FnOnce(&mut Value)) -> ControlPages {
        let mut page = json!({
            "read": {"/mesh": "1", "/run": "2"},
            "in_force": {"everywhere": true},
            "proxies": [
                {"node": "sidecar~127.1.0.2~web-0.shop~shop.svc.cluster.local", "synced": true},
                {"node": "sidecar~127.1.0.3~cart-0.shop~shop.svc.cluster.local", "synced": true},
            ],
        });
        change(&mut page);
        let read = ControlPage::parse(page.to_string().as_bytes(), Instant::now());
        ControlPages(vec![read])
    }

    fn verdict(pages: &ControlPages, after: Duration) -> EditStatus {
        let folders = [("/mesh", "1"), ("/run", "2")];
        let folders = folders.map(|(folder, digest)| (folder.into(), digest.to_owned()));
        let proxies = ["shop/cart-0", "shop/web-0"].map(str::to_owned);
        pages.verdict(&folders.into(), &proxies.into(), Instant::now() + after)
    }

    #[test]
    fn an_edit_is_in_force_when_it_was_read_and_every_proxy_has_acknowledged_it() {
        let waiting = |what: &str| EditStatus::Waiting(what.to_owned());
        let refused = json!([{"proxy": "sidecar~127.1.0.2~web-0.shop~x", "type": "a.b.Workload", "resource": "shop/w", "reason": "no"}]);
        type Case = (Box<dyn FnOnce(&mut Value)>, EditStatus);
        let cases: [Case; 6] = [
            (Box::new(|_| {}), EditStatus::InForce(2)),
            (
                Box::new(|page| page["read"]["/mesh"] = json!("0")),
                waiting("the control plane to read it"),
            ),
            (
                Box::new(|page| page["proxies"][0]["synced"] = json!(false)),
                waiting("the proxy of shop/web-0 to acknowledge it"),
            ),
            (
                Box::new(|page| drop(page["proxies"].as_array_mut().expect("a list").pop())),
                waiting("the proxy of shop/cart-0 to acknowledge it"),
            ),
            (
                Box::new(|page| page["in_force"]["everywhere"] = json!(false)),
                waiting("a proxy to acknowledge it"),
            ),
            (
                Box::new(|page| page["in_force"]["refused"] = refused),
                EditStatus::Refused,
            ),
        ];
        for (change, expected) in cases {
            assert_eq!(verdict(&page(change), Duration::ZERO), expected);
        }
        let gone = waiting("the control plane to answer");
        assert_eq!(verdict(&page(|_| {}), FRESH), gone, "it answered once");
        assert_eq!(verdict(&ControlPages(vec![None]), Duration::ZERO), gone);
        assert_eq!(verdict(&ControlPages::default(), Duration::ZERO), gone);
    }

    #[test]
    fn refusals_and_problems_are_told_in_words() {
        let pages = page(|page| {
            page["in_force"]["refused"] = json!([
                {"proxy": "sidecar~127.1.0.2~web-0.shop~x", "type": "type.googleapis.com/voile.Workload", "resource": "shop/w", "reason": "port 80 is taken"},
                {"proxy": "other", "type": "a", "resource": "", "reason": "no"},
            ]);
            page["documents"] = json!({"problems": ["no keys"]});
            page["state_lost"] = json!("/state: the folder is gone");
        });
        let said: Vec<_> = pages.refusals().into_iter().collect();
        assert_eq!(
            said,
            [
                "the proxy of other refuses a: no",
                "the proxy of shop/web-0 refuses Workload `shop/w`: port 80 is taken",
            ]
        );
        let said: Vec<_> = pages.problems().into_iter().collect();
        assert_eq!(
            said,
            ["/state: the folder is gone", "not in force: no keys"]
        );
    }
}
