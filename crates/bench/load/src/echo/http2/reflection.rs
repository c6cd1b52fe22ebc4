//! gRPC server reflection of `voile echo`: descriptions of the methods it serves, so that grpcurl and similar clients need no
//! `.proto` files. The descriptions are compiled from `crates/bench/load/proto` and committed; a test compiles them again.

use std::sync::LazyLock;

use prost::Message as _;
use prost_reflect::DescriptorPool;

use crate::reflection::{
    DescriptorFiles, Extensions, ReflectedService, ReflectionError, ReflectionQuestion,
    ReflectionReply, ReflectionRequest, ReflectionResponse, SERVED, Services,
};

/// gRPC status of an unknown name.
const NOT_FOUND: i32 = 5;

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(SERVED)
        .expect("invariant: a test compares the committed set with its sources")
});

/// The answer to a question; none if it is no question.
pub(super) fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let question = ReflectionQuestion::decode(question).ok()?;
    let told = match question.asked.clone()? {
        ReflectionRequest::File(name) => file(POOL.get_file_by_name(&name), &name),
        ReflectionRequest::Symbol(name) => file(containing(&name), &name),
        ReflectionRequest::Services(_) => {
            let services = POOL.services().map(|service| ReflectedService {
                name: service.full_name().to_owned(),
            });
            ReflectionReply::Services(Services {
                services: services.collect(),
            })
        }
        ReflectionRequest::Extensions(of) if POOL.get_message_by_name(&of).is_some() => {
            ReflectionReply::Extensions(Extensions {
                of,
                numbers: Vec::new(),
            })
        }
        ReflectionRequest::Extensions(of)
        | ReflectionRequest::Extension(crate::reflection::Extension { of, .. }) => unknown(&of),
    };
    let answer = ReflectionResponse {
        host: question.host.clone(),
        question: Some(question),
        told: Some(told),
    };
    Some(answer.encode_to_vec())
}

/// The file that describes a service, a method, a message or an enumeration.
fn containing(name: &str) -> Option<prost_reflect::FileDescriptor> {
    let service = |name: &str| POOL.get_service_by_name(name);
    if let Some(service) = service(name) {
        return Some(service.parent_file());
    }
    if let Some(message) = POOL.get_message_by_name(name) {
        return Some(message.parent_file());
    }
    if let Some(kind) = POOL.get_enum_by_name(name) {
        return Some(kind.parent_file());
    }
    let (owner, method) = name.rsplit_once('.')?;
    let owner = service(owner)?;
    owner
        .methods()
        .any(|known| known.name() == method)
        .then(|| owner.parent_file())
}

fn file(found: Option<prost_reflect::FileDescriptor>, name: &str) -> ReflectionReply {
    // None of the files needs another.
    found.map_or_else(
        || unknown(name),
        |file| {
            ReflectionReply::Files(DescriptorFiles {
                files: vec![file.encode_to_vec()],
            })
        },
    )
}

fn unknown(name: &str) -> ReflectionReply {
    ReflectionReply::Refusal(ReflectionError {
        code: NOT_FOUND,
        message: format!("{name} is not served here"),
    })
}
