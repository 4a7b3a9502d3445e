//! The messages of `proto/`, by hand: a generator would need a compiler for the schema at build time. A test compares them
//! with the schema.

use std::collections::HashMap;

use prost::{Enumeration, Message, Oneof};

pub mod process {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
    #[repr(i32)]
    pub enum Signal {
        Unspecified = 0,
        Sigint = 2,
        Sigkill = 9,
        Sigterm = 15,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Pty {
        #[prost(uint32, tag = "1")]
        pub cols: u32,
        #[prost(uint32, tag = "2")]
        pub rows: u32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ProcessConfig {
        #[prost(string, repeated, tag = "1")]
        pub command: Vec<String>,
        #[prost(map = "string, string", tag = "2")]
        pub env_vars: HashMap<String, String>,
        #[prost(string, optional, tag = "3")]
        pub cwd: Option<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct StartRequest {
        #[prost(message, optional, tag = "1")]
        pub config: Option<ProcessConfig>,
        #[prost(message, optional, tag = "2")]
        pub pty: Option<Pty>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct InitEvent {
        #[prost(int32, tag = "1")]
        pub process_id: i32,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct ExitEvent {
        #[prost(int32, tag = "1")]
        pub exit_code: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct StartResponse {
        #[prost(oneof = "Event", tags = "1, 2, 3, 4")]
        pub event: Option<Event>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Event {
        #[prost(message, tag = "1")]
        Init(InitEvent),
        #[prost(bytes = "bytes", tag = "2")]
        Stdout(bytes::Bytes),
        #[prost(bytes = "bytes", tag = "3")]
        Stderr(bytes::Bytes),
        #[prost(message, tag = "4")]
        Exit(ExitEvent),
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ExecuteRequest {
        #[prost(message, optional, tag = "1")]
        pub config: Option<ProcessConfig>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ExecuteResponse {
        #[prost(int32, tag = "1")]
        pub exit_code: i32,
        #[prost(bytes = "vec", tag = "2")]
        pub stdout: Vec<u8>,
        #[prost(bytes = "vec", tag = "3")]
        pub stderr: Vec<u8>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct WriteStdinRequest {
        #[prost(int32, tag = "1")]
        pub process_id: i32,
        #[prost(oneof = "Payload", tags = "2, 3")]
        pub payload: Option<Payload>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Payload {
        #[prost(bytes = "bytes", tag = "2")]
        Input(bytes::Bytes),
        #[prost(message, tag = "3")]
        Eof(Empty),
    }

    /// `google.protobuf.Empty`, and every answer without content.
    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Empty {}

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct SendSignalRequest {
        #[prost(int32, tag = "1")]
        pub process_id: i32,
        #[prost(enumeration = "Signal", tag = "2")]
        pub signal: i32,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct ResizeTtyRequest {
        #[prost(int32, tag = "1")]
        pub process_id: i32,
        #[prost(uint32, tag = "2")]
        pub cols: u32,
        #[prost(uint32, tag = "3")]
        pub rows: u32,
    }
}

pub mod detached {
    use super::process::ExitEvent;
    use super::*;

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct StartResponse {
        #[prost(int32, tag = "1")]
        pub process_id: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ListResponse {
        #[prost(message, repeated, tag = "1")]
        pub processes: Vec<ProcessInfo>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ProcessInfo {
        #[prost(int32, tag = "1")]
        pub process_id: i32,
        #[prost(string, repeated, tag = "2")]
        pub command: Vec<String>,
        #[prost(bool, tag = "3")]
        pub detached: bool,
        #[prost(bool, tag = "4")]
        pub terminal: bool,
        #[prost(int64, tag = "5")]
        pub started_at_unix_ms: i64,
        #[prost(int32, optional, tag = "6")]
        pub exit_code: Option<i32>,
        #[prost(int64, optional, tag = "7")]
        pub ended_at_unix_ms: Option<i64>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct ConnectRequest {
        #[prost(int32, tag = "1")]
        pub process_id: i32,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Dropped {
        #[prost(uint64, tag = "1")]
        pub bytes: u64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ConnectResponse {
        #[prost(oneof = "Event", tags = "1, 2, 3, 4")]
        pub event: Option<Event>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Event {
        #[prost(bytes = "bytes", tag = "1")]
        Stdout(bytes::Bytes),
        #[prost(bytes = "bytes", tag = "2")]
        Stderr(bytes::Bytes),
        #[prost(message, tag = "3")]
        Dropped(Dropped),
        #[prost(message, tag = "4")]
        Exit(ExitEvent),
    }
}
