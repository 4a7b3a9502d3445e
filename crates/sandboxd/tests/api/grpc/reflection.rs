//! What tools such as grpcurl ask before their first call.

use prost::Message;

use super::{Client, run};
use crate::support::Daemon;

#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(string, optional, tag = "3")]
    file: Option<String>,
    #[prost(string, optional, tag = "4")]
    symbol: Option<String>,
    #[prost(string, optional, tag = "7")]
    list: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(message, optional, tag = "4")]
    files: Option<Files>,
    #[prost(message, optional, tag = "6")]
    services: Option<Services>,
    #[prost(message, optional, tag = "7")]
    error: Option<Problem>,
}

#[derive(Clone, PartialEq, Message)]
struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    descriptors: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Services {
    #[prost(message, repeated, tag = "1")]
    services: Vec<Service>,
}

#[derive(Clone, PartialEq, Message)]
struct Service {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Problem {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[test]
fn services_and_their_schema_are_found_in_both_versions() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        for method in [
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        ] {
            let questions = vec![
                Question { list: Some(String::new()), ..Default::default() },
                Question { symbol: Some("process.v1.ProcessService".to_owned()), ..Default::default() },
                Question { symbol: Some("sandboxd.v1.ProcessInfo".to_owned()), ..Default::default() },
                Question { file: Some("google/protobuf/empty.proto".to_owned()), ..Default::default() },
                Question { symbol: Some("other.v1.Thing".to_owned()), ..Default::default() },
            ];
            let mut answers = client.converse::<_, Answer>(method, questions).await.unwrap();
            let mut next = async || answers.message().await.unwrap().unwrap();
            let services = next().await.services.unwrap().services;
            let names: Vec<String> = services.into_iter().map(|service| service.name).collect();
            assert_eq!(names, ["process.v1.ProcessService", "sandboxd.v1.ProcessService"]);
            assert_eq!(next().await.files.unwrap().descriptors.len(), 2, "with the file that it imports");
            assert_eq!(next().await.files.unwrap().descriptors.len(), 3);
            let empty = &next().await.files.unwrap().descriptors[0];
            assert!(empty.windows(5).any(|window| window == b"Empty"));
            assert_eq!(next().await.error.unwrap().code, 5);
        }
    });
}
