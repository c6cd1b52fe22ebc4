//! Encodes JSON as messages of a gRPC method. The description comes from the server by reflection, under either of its names, or
//! from a file of descriptors, once, before the run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use prost::Message as _;
use prost_reflect::prost_types::{FileDescriptorProto, FileDescriptorSet};
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};

use crate::grpc;
use crate::http2::{CallError, Http2Caller};
use crate::options::LoadTarget;
use crate::reflection::{
    DescriptorFiles, ReflectionQuestion, ReflectionReply, ReflectionRequest, ReflectionResponse,
    SERVED,
};
use crate::tls::Tls;

/// The most files that a service may need: more is a server that plays with us.
const MAX_FILES: usize = 2_000;
/// gRPC's status of a method that is not there.
const UNIMPLEMENTED: u16 = 12;

/// Description of a gRPC method: its request and response messages.
#[derive(Debug, Clone)]
pub struct Method(MethodDescriptor);

impl Method {
    /// Finds the method in a target's path: in a file (a `FileDescriptorSet`, as `protoc -o` and `buf build -o` write it) or by
    /// asking the server.
    ///
    /// # Errors
    /// Says what is missing: the file, reflection, the service or the method.
    pub fn find(
        target: &LoadTarget,
        tls: Option<&Tls>,
        file: Option<&Path>,
    ) -> Result<Self, String> {
        let path = target.path.split('?').next().unwrap_or_default();
        let named = path.trim_start_matches('/').split_once('/');
        let (service, method) = named
            .filter(|(service, method)| !service.is_empty() && !method.is_empty())
            .ok_or_else(|| {
                format!(
                    "{}: name the method: grpc://HOST:PORT/package.Service/Method",
                    target.url
                )
            })?;
        let pool = match file {
            Some(file) => {
                let told =
                    |why: &dyn std::fmt::Display| format!("descriptors {}: {why}", file.display());
                let bytes = std::fs::read(file).map_err(|error| told(&error))?;
                DescriptorPool::decode(bytes.as_slice())
                    .map_err(|error| told(&format!("not a FileDescriptorSet with all its imports (protoc --include_imports): {error}")))?
            }
            // Well-known services need no request: many servers have no reflection.
            None => known(service).map_or_else(|| ask(target, tls, service), Ok).map_err(|why| {
                format!(
                    "{}: cannot get the description of {service}: {why}; use --descriptors instead",
                    target.url
                )
            })?,
        };
        let known = pool
            .get_service_by_name(service)
            .ok_or_else(|| format!("service {service} is not described"))?;
        let all: Vec<_> = known
            .methods()
            .map(|method| method.name().to_owned())
            .collect();
        let found = known.methods().find(|known| known.name() == method);
        found.map(Self).ok_or_else(|| {
            format!(
                "service {service} has no method {method}, only {}",
                all.join(", ")
            )
        })
    }

    /// Reports if a call carries many messages, and if its answer does.
    #[must_use]
    pub fn streaming(&self) -> (bool, bool) {
        (self.0.is_client_streaming(), self.0.is_server_streaming())
    }

    /// The messages that a text of JSON means: one, or several after each other.
    ///
    /// # Errors
    /// Says what does not fit, and the message that was expected.
    pub fn messages(&self, json: &str) -> Result<Vec<Vec<u8>>, String> {
        let kind = self.0.input();
        let mut messages = Vec::new();
        for value in serde_json::Deserializer::from_str(json).into_iter::<serde_json::Value>() {
            let value = value.map_err(|error| format!("not JSON: {error}"))?;
            let message = DynamicMessage::deserialize(kind.clone(), value)
                .map_err(|error| format!("not a {}: {error}", kind.full_name()))?;
            messages.push(message.encode_to_vec());
        }
        if messages.is_empty() {
            return Err(format!("no JSON in it; expected a {}", kind.full_name()));
        }
        Ok(messages)
    }
}

/// Descriptions of services whose messages are the same everywhere.
fn known(service: &str) -> Option<DescriptorPool> {
    let common = ["grpc.health.v1.Health", "fgrpc.PingServer"].contains(&service);
    common
        .then(|| DescriptorPool::decode(SERVED).ok())
        .flatten()
}

/// Asks a server for the file of a service, and for all that it needs.
fn ask(target: &LoadTarget, tls: Option<&Tls>, service: &str) -> Result<DescriptorPool, String> {
    let mut why = String::new();
    for path in grpc::REFLECTION {
        // A connection for each: a server that does not know the one may have closed it.
        let mut caller =
            Http2Caller::connect(target, tls).map_err(|trouble| trouble.to_string())?;
        let symbol = ReflectionRequest::Symbol(service.to_owned());
        match question(&mut caller, path, target, symbol) {
            Ok(files) => return gather(&mut caller, path, target, files),
            Err(CallError::Status(UNIMPLEMENTED, _)) => {
                "the server has no reflection".clone_into(&mut why);
            }
            Err(trouble) => return Err(trouble.to_string()),
        }
    }
    Err(why)
}

fn gather(
    caller: &mut Http2Caller,
    path: &str,
    target: &LoadTarget,
    files: DescriptorFiles,
) -> Result<DescriptorPool, String> {
    let known = DescriptorPool::global();
    let mut all: BTreeMap<String, FileDescriptorProto> = BTreeMap::new();
    let mut missing = BTreeSet::new();
    let mut come = files.files;
    loop {
        for bytes in come.drain(..) {
            let file = FileDescriptorProto::decode(bytes.as_slice())
                .map_err(|error| format!("the answer is not a FileDescriptorProto: {error}"))?;
            missing.extend(file.dependency.iter().cloned());
            all.insert(file.name().to_owned(), file);
        }
        missing.retain(|name| !all.contains_key(name));
        let Some(name) = missing.pop_first() else {
            break;
        };
        if all.len() >= MAX_FILES {
            return Err(format!("more than {MAX_FILES} files"));
        }
        match question(caller, path, target, ReflectionRequest::File(name.clone())) {
            Ok(files) => come = files.files,
            Err(trouble) => {
                // Servers may leave out Google's own files; the client has them.
                let file = known.get_file_by_name(&name);
                let file = file.ok_or_else(|| format!("file {name}: {trouble}"))?;
                come = vec![file.encode_to_vec()];
            }
        }
        if !come.iter().any(|bytes| {
            FileDescriptorProto::decode(bytes.as_slice()).is_ok_and(|file| file.name() == name)
        }) {
            return Err(format!("requested file {name}, but the server sent others"));
        }
    }
    let set = FileDescriptorSet {
        file: all.into_values().collect(),
    };
    DescriptorPool::from_file_descriptor_set(set)
        .map_err(|error| format!("inconsistent descriptions: {error}"))
}

fn question(
    caller: &mut Http2Caller,
    path: &str,
    target: &LoadTarget,
    asked: ReflectionRequest,
) -> Result<DescriptorFiles, CallError> {
    let question = ReflectionQuestion {
        host: target.host().to_owned(),
        asked: Some(asked),
    };
    let body = caller.call(path, &question.encode_to_vec())?;
    let told = grpc::messages(&body)
        .next()
        .and_then(|message| ReflectionResponse::decode(message).ok())
        .and_then(|answer| answer.told);
    match told {
        Some(ReflectionReply::Files(files)) => Ok(files),
        // The call went well, and the answer is that there is none: not to be mistaken for a missing method.
        Some(ReflectionReply::Refusal(refusal)) => Err(CallError::Broken(refusal.message)),
        _ => Err(CallError::Broken(
            "the answer does not match the request".to_owned(),
        )),
    }
}
