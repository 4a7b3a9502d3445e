//! `/openapi/v2`, for clients that ask for it before they look at discovery.
//!
//! The schemas are in version 3 of OpenAPI, which every kubectl since 1.27 prefers. It still asks for version 2 when it
//! applies a kind that version 3 does not know; a document without definitions makes it go on to discovery and report
//! that there is no such kind. kubectl reads only protobuf here, other clients JSON.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use super::openapi::{TITLE, VERSION};
use crate::status::json_response;

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

pub(super) fn document(accept: &str) -> Response {
    // Clients write the media type with an @ where the answer has a dot.
    if !accept.contains("com.github.proto-openapi.spec.v2") {
        let info = json!({ "title": TITLE, "version": VERSION });
        let document = json!({ "swagger": "2.0", "info": info, "paths": {}, "definitions": {} });
        return json_response(StatusCode::OK, &document);
    }
    let info = [field(1, TITLE.as_bytes()), field(2, VERSION.as_bytes())].concat();
    let document = [field(1, b"2.0"), field(2, &info), field(8, b""), field(9, b"")].concat();
    let mut response = Response::new(Body::from(document));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
    response
}

/// A field of a protobuf message that holds bytes, fewer than 128.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    debug_assert!(bytes.len() < 128);
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_in_protobuf_names_its_version_and_title() {
        let info = field(2, &[field(1, b"Kubernetes"), field(2, b"v1.36.0")].concat());
        assert_eq!(info[..4], [2 << 3 | 2, 21, 1 << 3 | 2, 10]);
        assert_eq!(&info[4..14], b"Kubernetes");
    }
}
