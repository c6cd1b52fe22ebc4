//! `voile generate`: resources by the thousand, for experiments. The same seed gives the same text.

use std::fmt::Write as _;
use std::process::ExitCode;

use voile_model::{Labels, Namespace};

/// What is made.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    #[command(about = "AuthorizationPolicies and PeerAuthentications")]
    Policies(Policies),
}

/// Most rules of one call: more is no experiment, and would be gigabytes.
const MAX_RULES: u32 = 1_000_000;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "YAML goes to stdout. The rules are spread over the policies in order; the one at `--hit` matches what `--hit-value` says,\n\
    the others match nothing that anybody sends. Exit code: 0, or 2 when the arguments contradict each other."
)]
struct Policies {
    /// What the rules ask about
    #[arg(long, value_enum, default_value = "paths")]
    kind: Kind,
    /// Rules in all
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RULES)))]
    rules: u32,
    /// Policies they are spread over
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    policies: u32,
    /// Which rule matches: first, last, miss, or its number from 0
    #[arg(long, default_value = "last")]
    hit: String,
    /// What that rule asks for; by kind `/`, `127.0.0.0/8`, `*`, `*`, `*` or `hit` (of the header x-generated) if left out
    #[arg(long)]
    hit_value: Option<String>,
    /// ALLOW, DENY or AUDIT
    #[arg(long, value_enum, default_value = "allow")]
    action: Action,
    /// They are only counted and logged
    #[arg(long)]
    dry_run: bool,
    /// Their namespace
    #[arg(long, short, default_value = "default")]
    namespace: String,
    /// Labels of the workloads they are for, as KEY=VALUE; all of the namespace if left out
    #[arg(long = "selector", value_name = "KEY=VALUE")]
    selector: Vec<String>,
    /// PeerAuthentications (PERMISSIVE, each for workloads that are not there) besides
    #[arg(long, default_value_t = 0)]
    peer_authentications: u32,
    /// What the values are made from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Paths,
    SourceIps,
    Namespaces,
    Principals,
    RequestPrincipals,
    Headers,
    /// A principal, a method and path, and a header in each
    Mixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Action {
    Allow,
    Deny,
    Audit,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let What::Policies(policies) = args.what;
    match policies.text() {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("voile generate policies: {why}");
            ExitCode::from(2)
        }
    }
}

impl Policies {
    fn text(&self) -> Result<String, String> {
        Namespace::new(&self.namespace)
            .ok_or_else(|| format!("`{}` is no namespace", self.namespace))?;
        if self.policies > self.rules {
            return Err("there are more policies than rules".to_owned());
        }
        let hit = match &*self.hit {
            "first" => Some(0),
            "last" => Some(self.rules - 1),
            "miss" => None,
            number => Some(
                number
                    .parse()
                    .ok()
                    .filter(|at| *at < self.rules)
                    .ok_or_else(|| {
                        format!(
                            "--hit: `{number}` is not first, last, miss or the number of a rule"
                        )
                    })?,
            ),
        };
        let selector = self.selector()?;
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut out = String::new();
        for policy in 0..self.policies {
            let share =
                |end: u32| u64::from(self.rules) * u64::from(end) / u64::from(self.policies);
            let dry = if self.dry_run {
                ", annotations: {istio.io/dry-run: \"true\"}"
            } else {
                ""
            };
            let action = match self.action {
                Action::Allow => "ALLOW",
                Action::Deny => "DENY",
                Action::Audit => "AUDIT",
            };
            // Writing into a String cannot fail.
            let _ = write!(
                out,
                "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
                 metadata: {{name: generated-{policy}, namespace: {}{dry}}}\nspec:\n{selector}  action: {action}\n  rules:\n",
                self.namespace
            );
            for rule in share(policy)..share(policy + 1) {
                let hits = hit.is_some_and(|hit| u64::from(hit) == rule);
                let _ = writeln!(out, "  - {}", self.rule(rule, hits, &mut random));
            }
        }
        for number in 0..self.peer_authentications {
            let _ = write!(
                out,
                "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
                 metadata: {{name: generated-{number}, namespace: {}}}\n\
                 spec: {{selector: {{matchLabels: {{generated: nobody-{number}}}}}, mtls: {{mode: PERMISSIVE}}}}\n",
                self.namespace
            );
        }
        Ok(out)
    }

    fn selector(&self) -> Result<String, String> {
        if self.selector.is_empty() {
            return Ok(String::new());
        }
        let labels = labels("--selector", &self.selector)?;
        let labels: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{}: {}", quoted(key), quoted(value)))
            .collect();
        Ok(format!(
            "  selector: {{matchLabels: {{{}}}}}\n",
            labels.join(", ")
        ))
    }

    /// One rule in flow style.
    fn rule(&self, number: u64, hits: bool, random: &mut fastrand::Rng) -> String {
        let word = format!("{:08x}", random.u32(..));
        let value = |usual: &str, made: String| match hits {
            true => self.hit_value.clone().unwrap_or_else(|| usual.to_owned()),
            false => made,
        };
        let from = |field: &str, value: &str| {
            format!("from: [{{source: {{{field}: [{}]}}}}]", quoted(value))
        };
        let path = |value: &str| format!("to: [{{operation: {{paths: [{}]}}}}]", quoted(value));
        let header = |value: &str| {
            format!(
                "when: [{{key: \"request.headers[x-generated]\", values: [{}]}}]",
                quoted(value)
            )
        };
        let principal = format!("cluster.local/ns/generated-{word}/sa/account-{number}");
        let body = match self.kind {
            Kind::Paths => path(&value("/", format!("/generated/{word}/{number}"))),
            // RFC 2544's addresses, which nobody has.
            Kind::SourceIps => {
                let address = std::net::Ipv4Addr::from(0xC612_0000 | (random.u32(..) & 0x1_FFFF));
                from("ipBlocks", &value("127.0.0.0/8", address.to_string()))
            }
            Kind::Namespaces => from(
                "namespaces",
                &value("*", format!("generated-{word}-{number}")),
            ),
            Kind::Principals => from("principals", &value("*", principal)),
            Kind::RequestPrincipals => from(
                "requestPrincipals",
                &value("*", format!("https://{word}.example/subject-{number}")),
            ),
            Kind::Headers => header(&value("hit", format!("{word}-{number}"))),
            Kind::Mixed => {
                let parts = [
                    from("principals", &value("*", principal)),
                    path(&value("/", format!("/generated/{word}/{number}"))),
                    header(&value("hit", format!("{word}-{number}"))),
                ];
                parts.join(", ")
            }
        };
        format!("{{{body}}}")
    }
}

/// Labels as an option that may be given several times says them.
pub(super) fn labels(option: &str, written: &[String]) -> Result<Labels, String> {
    let pair = |text: &String| {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| format!("{option}: `{text}` is not KEY=VALUE"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    let pairs = written
        .iter()
        .map(pair)
        .collect::<Result<Vec<_>, String>>()?;
    Ok(pairs.into_iter().collect())
}

/// As YAML's double-quoted text, which JSON's is too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
