//! The Kubernetes cluster that a command asks, and the resources that a command reads: of a cluster, of files, or both.

use std::path::{Path, PathBuf};

use voile_kubernetes::{
    Client, ClusterAddress, ClusterError, ClusterObjects, DEFAULT_REVISION, connect,
};
use voile_model::{Mesh, SourceFile, files};

use crate::commands::inspect::monitoring;
use crate::commands::inspect::running_mesh::MeshArgs;

/// The name that stands for standard input.
const STDIN: &str = "-";
/// Namespace of a cluster's objects that name none.
const DEFAULT_NAMESPACE: &str = "default";

/// Address of a cluster.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct KubeconfigArgs {
    /// Kubeconfig of the cluster; without it that of the variable KUBECONFIG, `~/.kube/config`, or the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig; without it the current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl From<KubeconfigArgs> for ClusterAddress {
    fn from(
        KubeconfigArgs {
            kubeconfig,
            context,
        }: KubeconfigArgs,
    ) -> Self {
        Self {
            kubeconfig,
            context,
        }
    }
}

impl KubeconfigArgs {
    /// A client of the cluster.
    pub(crate) async fn connect(&self) -> Result<Client, ClusterError> {
        connect(&self.clone().into()).await
    }
}

/// The cluster, for a command that can do without.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(
    mut_arg("kubeconfig", |arg| arg.requires("kubernetes")),
    mut_arg("context", |arg| arg.requires("kubernetes"))
)]
pub(crate) struct ClusterArgs {
    /// Ask a Kubernetes cluster.
    #[arg(long)]
    pub(crate) kubernetes: bool,

    #[command(flatten)]
    address: KubeconfigArgs,

    /// Namespace of the control plane.
    #[arg(
        long,
        short = 'i',
        value_name = "NAME",
        default_value = "istio-system",
        requires = "kubernetes"
    )]
    pub(crate) istio_namespace: String,

    /// Revision of the control plane, where there are several.
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    pub(crate) revision: Option<String>,
}

impl ClusterArgs {
    /// A client of the cluster.
    pub(crate) async fn connect(&self) -> Result<Client, String> {
        let client = self.address.connect().await;
        client.map_err(|error| error.to_string())
    }

    async fn objects(&self) -> Result<(Client, ClusterObjects), String> {
        let client = self.connect().await?;
        let revision = self.revision.as_deref().unwrap_or(DEFAULT_REVISION);
        let objects = ClusterObjects::read(&client, &self.istio_namespace, revision).await;
        let objects = objects.map_err(|error| error.to_string())?;
        Ok((client, objects))
    }
}

/// Resources of a mesh.
#[derive(Debug)]
pub(crate) struct ReadResources {
    pub(crate) files: Vec<SourceFile>,
    /// How many of the files are objects of a cluster; they are the first.
    pub(crate) objects: usize,
    /// Namespace of a name without one: that of the cluster's context, or `default`.
    pub(crate) namespace: String,
}

impl ReadResources {
    /// Reads folders, single files and standard input (`-`). With a cluster, they are read as if they were applied to it. Without
    /// any of them it is the folder of the mesh that runs on this machine.
    pub(crate) fn read(paths: &[PathBuf], cluster: &ClusterArgs) -> Result<Self, String> {
        let mut files = Vec::new();
        let running = match paths.is_empty() && !cluster.kubernetes {
            true => vec![running_folder()?],
            false => Vec::new(),
        };
        for path in paths.iter().chain(&running) {
            let read = read_path(path);
            let read = read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            if read.is_empty() {
                let path = path.display();
                eprintln!("there is no .yaml, .yml or .json file below {path}");
            }
            files.extend(read);
        }
        if !cluster.kubernetes {
            return Ok(Self {
                files,
                objects: 0,
                namespace: DEFAULT_NAMESPACE.to_owned(),
            });
        }
        let (client, objects) = crate::commands::on_runtime(cluster.objects(), |error| error)?;
        for reason in &objects.unread {
            eprintln!("not read: {reason}");
        }
        let texts = files.iter().filter_map(|file| file.text.as_ref().ok());
        texts.for_each(|text| objects.replace_by(text));
        let mut all = objects.files();
        let objects = all.len();
        all.extend(files);
        Ok(Self {
            files: all,
            objects,
            namespace: client.default_namespace().to_owned(),
        })
    }
}

impl ReadResources {
    /// The mesh that they mean, and the number of errors. A node proxy may serve all of its pods.
    pub(crate) fn mesh(&self, by_node: bool) -> (Mesh, usize) {
        let (mut mesh, problems) = voile_model::check(&self.files, None);
        if by_node {
            voile_local::serve_by_node(&mut mesh);
        }
        let errors = problems.iter().filter(|problem| problem.is_error());
        (mesh, errors.count())
    }
}

/// The folder of the mesh that runs on this machine.
fn running_folder() -> Result<PathBuf, String> {
    let found = MeshArgs::default().find(&monitoring::runtime()?)?;
    let none = "no folder is named and no mesh runs on this machine; cure: name a folder of YAML, or ask a cluster: --kubernetes";
    let folder = found.ok_or(none)?.folder().to_owned();
    eprintln!("{} runs", folder.display());
    Ok(folder)
}

/// The files below a folder, or one named file, with any ending; `-` is standard input.
fn read_path(path: &Path) -> std::io::Result<Vec<SourceFile>> {
    if path == Path::new(STDIN) {
        let text = std::io::read_to_string(std::io::stdin())?;
        return Ok(vec![SourceFile::new("stdin", text)]);
    }
    match path.metadata()?.is_dir() {
        true => files::read_directory(path),
        false => Ok(vec![files::read_file(path)]),
    }
}
