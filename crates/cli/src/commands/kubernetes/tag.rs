//! `voile tag`: names that namespaces use instead of a revision.

use std::process::ExitCode;

use serde_json::json;
use voile_kubernetes::install::{
    InstallError, RevisionTag, TagChange, list_tags, remove_tag, set_tag,
};

use crate::commands::inspect::monitoring::table;
use crate::commands::kubernetes::install::{InstallationArgs, exit_code};
use crate::commands::kubernetes::uninstall::ask;
use crate::commands::values::Output;

/// Set, list and remove tags: names such as `prod` that namespaces use instead of a revision.
///
/// A namespace with the label istio.io/rev=prod gets sidecars of the revision that the tag stands for. An upgrade installs a second
/// revision, moves the tag, and restarts the pods; the labels of the namespaces stay. The tag `default` is for namespaces with
/// istio-injection=enabled.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 when it is done, 1 when something is missing or belongs to others, or the cluster refuses, 2 when a value cannot be used."
)]
pub(crate) struct TagArgs {
    #[command(subcommand)]
    command: TagCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TagCommand {
    /// Let a tag stand for a revision (--revision, or `default`).
    Set {
        /// Name of the tag.
        tag: String,
        #[command(flatten)]
        cluster: InstallationArgs,
        /// Move a tag that stands for another revision.
        #[arg(long)]
        overwrite: bool,
    },
    /// List the tags, their revisions, and the namespaces that use them.
    List {
        #[command(flatten)]
        cluster: InstallationArgs,
        /// Format of the list.
        #[arg(long, short, value_enum, default_value = "text")]
        output: Output,
    },
    /// Remove a tag. Asks first if namespaces use it.
    Remove {
        /// Name of the tag.
        tag: String,
        #[command(flatten)]
        cluster: InstallationArgs,
        /// Answer every question with yes.
        #[arg(long, short)]
        yes: bool,
    },
}

pub(crate) fn run(args: &TagArgs) -> ExitCode {
    let done = crate::commands::on_runtime(execute(&args.command), InstallError::Unavailable);
    exit_code("tag", done)
}

async fn execute(command: &TagCommand) -> Result<ExitCode, InstallError> {
    let progress = |line: &str| eprintln!("{line}");
    match command {
        TagCommand::Set {
            tag,
            cluster,
            overwrite,
        } => {
            let change = TagChange {
                namespace: &cluster.namespace,
                revision: cluster.revision.as_deref().unwrap_or("default"),
                tag,
                overwrite: *overwrite,
            };
            set_tag(&cluster.address.connect().await?, change, &progress).await?;
        }
        TagCommand::List { cluster, output } => {
            let mut tags = list_tags(&cluster.address.connect().await?).await?;
            let wanted = cluster.revision.as_ref();
            tags.retain(|one| wanted.is_none_or(|revision| one.revision == *revision));
            print!("{}", list(&tags, *output));
        }
        TagCommand::Remove { tag, cluster, yes } => {
            let confirm = |question: &str| *yes || ask(question);
            remove_tag(&cluster.address.connect().await?, tag, &confirm, &progress).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(tags: &[RevisionTag], output: Output) -> String {
    match output {
        Output::Json => {
            let one = |tag: &RevisionTag| json!({"tag": tag.name, "revision": tag.revision, "namespaces": tag.namespaces});
            let all: Vec<_> = tags.iter().map(one).collect();
            format!("{:#}\n", json!(all))
        }
        Output::Text => {
            let row = |tag: &RevisionTag| {
                vec![
                    tag.name.clone(),
                    tag.revision.clone(),
                    tag.namespaces.join(","),
                ]
            };
            let rows: Vec<_> = tags.iter().map(row).collect();
            table(&["TAG", "REVISION", "NAMESPACES"], &rows)
        }
    }
}
