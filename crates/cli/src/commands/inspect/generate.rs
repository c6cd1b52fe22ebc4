//! `voile generate`: resources by the thousand, for experiments. The same seed gives the same text.

mod issuer;
mod mesh;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use voile_model::{Labels, Namespace};

use issuer::Issuer;

/// `sub` of a token.
const SUBJECT: &str = "subject";

/// The output.
#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    #[command(subcommand)]
    what: GeneratedKind,
}

#[derive(Debug, clap::Subcommand)]
enum GeneratedKind {
    #[command(about = "AuthorizationPolicies, PeerAuthentications and RequestAuthentications")]
    Policies(Policies),
    #[command(about = "A whole mesh: services, workloads with sidecars, policies")]
    Mesh(mesh::Mesh),
}

/// Most rules of one call: more is no experiment, and would be gigabytes.
const MAX_RULES: u32 = 1_000_000;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "YAML goes to stdout. The rules are spread over the policies in order; the one at `--hit` matches `--hit-value`,\n\
    the others match no real request.\n\n\
    `--kind jwt` makes RequestAuthentications instead: each rule is an issuer with its own key (Ed25519, made from the seed, for experiments\n\
    only), and `--tokens` gets a token of the issuer at `--hit`, or of an unknown issuer for `miss`. With `--tokens`, `--kind\n\
    request-principals` also makes one issuer, whose subject the rule at `--hit` matches. Exit code: 0, or 2 if the arguments\n\
    contradict each other."
)]
struct Policies {
    /// Attribute of the rules
    #[arg(long, value_enum, default_value = "paths")]
    kind: ResourceSet,
    /// Number of rules in total
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RULES)))]
    rules: u32,
    /// File for tokens that belong to the rules, one a line
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Number of tokens, each for another subject (`request-principals`: all for the same one)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RULES)), requires = "tokens")]
    token_count: u32,
    /// Number of policies that the rules are spread over
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    policies: u32,
    /// Which rule matches: first, last, miss, or its number from 0
    #[arg(long, default_value = "last")]
    hit: String,
    /// Value in that rule; by kind `/`, `127.0.0.0/8`, `*`, `*`, `*` (the tokens' subject) or `hit` (of the header
    /// x-generated) if left out
    #[arg(long)]
    hit_value: Option<String>,
    /// ALLOW, DENY or AUDIT
    #[arg(long, value_enum, default_value = "allow")]
    action: PolicyAction,
    /// Dry run: the policies are only counted and logged
    #[arg(long)]
    dry_run: bool,
    /// Namespace of the policies
    #[arg(long, short, default_value = "default")]
    namespace: String,
    /// Labels of the selected workloads, as KEY=VALUE; all workloads of the namespace if left out
    #[arg(long = "selector", value_name = "KEY=VALUE")]
    selector: Vec<String>,
    /// Number of additional PeerAuthentications (PERMISSIVE, each selecting no workload)
    #[arg(long, default_value_t = 0)]
    peer_authentications: u32,
    /// Seed of the values
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ResourceSet {
    Paths,
    SourceIps,
    Namespaces,
    Principals,
    RequestPrincipals,
    Headers,
    /// A principal, a method and path, and a header in each
    Mixed,
    /// Issuers of tokens (RequestAuthentication)
    Jwt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PolicyAction {
    Allow,
    Deny,
    Audit,
}

pub(crate) fn run(args: GenerateArgs) -> ExitCode {
    let policies = match args.what {
        GeneratedKind::Policies(policies) => policies,
        GeneratedKind::Mesh(mesh) => return mesh::run(&mesh),
    };
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
            .ok_or_else(|| format!("`{}` is not a namespace", self.namespace))?;
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
        let mut out = self.issuers(&selector)?;
        self.write_tokens(hit)?;
        let policies = if self.kind == ResourceSet::Jwt {
            0
        } else {
            self.policies
        };
        for policy in 0..policies {
            let share = |end: u32| self.share(end);
            let dry = if self.dry_run {
                ", annotations: {istio.io/dry-run: \"true\"}"
            } else {
                ""
            };
            let action = match self.action {
                PolicyAction::Allow => "ALLOW",
                PolicyAction::Deny => "DENY",
                PolicyAction::Audit => "AUDIT",
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

    /// The first rule of a policy.
    fn share(&self, policy: u32) -> u64 {
        u64::from(self.rules) * u64::from(policy) / u64::from(self.policies)
    }

    /// RequestAuthentications, where they are asked for.
    fn issuers(&self, selector: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut one = |name: &str, issuers: std::ops::Range<u32>| -> Result<(), String> {
            // Writing into a String cannot fail.
            let _ = write!(
                out,
                "---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\n\
                 metadata: {{name: {name}, namespace: {}}}\nspec:\n{selector}  jwtRules:\n",
                self.namespace
            );
            for number in issuers {
                let issuer = Issuer::new(self.seed, number)?;
                let _ = writeln!(
                    out,
                    "  - {{issuer: {}, jwks: {}}}",
                    quoted(&issuer.name),
                    quoted(&issuer.keys())
                );
            }
            Ok(())
        };
        match self.kind {
            ResourceSet::Jwt => {
                for policy in 0..self.policies {
                    // No more than there are rules, and those are 32 bits.
                    let at = |end| u32::try_from(self.share(end)).unwrap_or(u32::MAX);
                    one(&format!("generated-{policy}"), at(policy)..at(policy + 1))?;
                }
            }
            ResourceSet::RequestPrincipals if self.tokens.is_some() => one("generated", 0..1)?,
            _ => {}
        }
        Ok(out)
    }

    /// Writes the tokens that belong to the rules.
    fn write_tokens(&self, hit: Option<u32>) -> Result<(), String> {
        let Some(path) = &self.tokens else {
            return Ok(());
        };
        let issuer = match (self.kind, hit) {
            (ResourceSet::Jwt, Some(hit)) => Issuer::new(self.seed, hit)?,
            // An issuer that no rule knows.
            (ResourceSet::Jwt, None) => Issuer::new(self.seed, self.rules)?,
            _ => Issuer::new(self.seed, 0)?,
        };
        let subject = |number: u32| match self.kind {
            ResourceSet::RequestPrincipals => SUBJECT.to_owned(),
            _ => format!("{SUBJECT}-{number}"),
        };
        let numbers = 0..self.token_count;
        let lines: String = numbers
            .map(|number| issuer.token(&subject(number)) + "\n")
            .collect();
        std::fs::write(path, lines)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
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
            ResourceSet::Paths => path(&value("/", format!("/generated/{word}/{number}"))),
            // RFC 2544's addresses, which no host has.
            ResourceSet::SourceIps => {
                let address = std::net::Ipv4Addr::from(0xC612_0000 | (random.u32(..) & 0x1_FFFF));
                from("ipBlocks", &value("127.0.0.0/8", address.to_string()))
            }
            ResourceSet::Namespaces => from(
                "namespaces",
                &value("*", format!("generated-{word}-{number}")),
            ),
            ResourceSet::Principals => from("principals", &value("*", principal)),
            ResourceSet::RequestPrincipals => {
                let usual = match self.tokens {
                    Some(_) => format!("{}/{SUBJECT}", Issuer::name(0)),
                    None => "*".to_owned(),
                };
                let made = format!("https://{word}.example/subject-{number}");
                from("requestPrincipals", &value(&usual, made))
            }
            ResourceSet::Headers => header(&value("hit", format!("{word}-{number}"))),
            // It has no policies.
            ResourceSet::Jwt => String::new(),
            ResourceSet::Mixed => {
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
pub(crate) fn labels(option: &str, written: &[String]) -> Result<Labels, String> {
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
