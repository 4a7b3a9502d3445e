//! Server reflection, so that tools such as grpcurl need no schema. Versions 1 and 1alpha have the same messages.

use prost::{Message, Oneof};
use tokio_stream::StreamExt;
use tonic::{Request, Status, Streaming};

use super::call::Events;

struct File {
    name: &'static str,
    package: &'static str,
    /// Serialised `FileDescriptorProto`.
    descriptor: &'static [u8],
    needs: &'static [&'static str],
}

const SERVICES: [&str; 2] = ["process.v1.ProcessService", "sandboxd.v1.ProcessService"];

const FILES: [File; 3] = [
    File {
        name: "process/v1/process.proto",
        package: "process.v1.",
        descriptor: include_bytes!("../../proto/process.v1.bin"),
        needs: &["google/protobuf/empty.proto"],
    },
    File {
        name: "sandboxd/v1/process.proto",
        package: "sandboxd.v1.",
        descriptor: include_bytes!("../../proto/sandboxd.v1.bin"),
        needs: &["process/v1/process.proto", "google/protobuf/empty.proto"],
    },
    File {
        name: "google/protobuf/empty.proto",
        package: "google.protobuf.Empty",
        descriptor: include_bytes!("../../proto/empty.bin"),
        needs: &[],
    },
];

const NOT_FOUND: i32 = 5;
const UNIMPLEMENTED: i32 = 12;

pub async fn info(call: Request<Streaming<Question>>) -> Result<Events<Answer>, Status> {
    Ok(Box::pin(call.into_inner().map(|question| question.map(answer))))
}

fn answer(question: Question) -> Answer {
    let content = match &question.asked {
        Some(Asked::FileByFilename(name)) => files(FILES.iter().find(|file| file.name == name), name),
        Some(Asked::FileContainingSymbol(symbol)) => {
            files(FILES.iter().find(|file| format!("{symbol}.").starts_with(file.package)), symbol)
        }
        Some(Asked::ListServices(_)) => Content::Services(Services {
            service: SERVICES.iter().map(|&name| Service { name: name.to_owned() }).collect(),
        }),
        Some(Asked::FileContainingExtension(_) | Asked::AllExtensionNumbersOfType(_)) => {
            error(NOT_FOUND, "there are no extensions")
        }
        None => error(UNIMPLEMENTED, "unknown question"),
    };
    Answer { valid_host: question.host.clone(), original_request: Some(question), content: Some(content) }
}

fn files(found: Option<&File>, asked: &str) -> Content {
    let Some(file) = found else { return error(NOT_FOUND, &format!("{asked} is not known")) };
    let needed = FILES.iter().filter(|other| file.needs.contains(&other.name));
    let descriptors = std::iter::once(file).chain(needed).map(|file| file.descriptor.to_vec());
    Content::Files(Descriptors { file_descriptor_proto: descriptors.collect() })
}

fn error(code: i32, message: &str) -> Content {
    Content::Error(Problem { error_code: code, error_message: message.to_owned() })
}

// === Messages ===

#[derive(Clone, PartialEq, Message)]
pub struct Question {
    #[prost(string, tag = "1")]
    pub host: String,
    #[prost(oneof = "Asked", tags = "3, 4, 5, 6, 7")]
    pub asked: Option<Asked>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Asked {
    #[prost(string, tag = "3")]
    FileByFilename(String),
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    #[prost(message, tag = "5")]
    FileContainingExtension(Extension),
    #[prost(string, tag = "6")]
    AllExtensionNumbersOfType(String),
    #[prost(string, tag = "7")]
    ListServices(String),
}

#[derive(Clone, PartialEq, Message)]
pub struct Extension {
    #[prost(string, tag = "1")]
    pub containing_type: String,
    #[prost(int32, tag = "2")]
    pub extension_number: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Answer {
    #[prost(string, tag = "1")]
    pub valid_host: String,
    #[prost(message, optional, tag = "2")]
    pub original_request: Option<Question>,
    #[prost(oneof = "Content", tags = "4, 6, 7")]
    pub content: Option<Content>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Content {
    #[prost(message, tag = "4")]
    Files(Descriptors),
    #[prost(message, tag = "6")]
    Services(Services),
    #[prost(message, tag = "7")]
    Error(Problem),
}

#[derive(Clone, PartialEq, Message)]
pub struct Descriptors {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub file_descriptor_proto: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Services {
    #[prost(message, repeated, tag = "1")]
    pub service: Vec<Service>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Service {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Problem {
    #[prost(int32, tag = "1")]
    pub error_code: i32,
    #[prost(string, tag = "2")]
    pub error_message: String,
}
