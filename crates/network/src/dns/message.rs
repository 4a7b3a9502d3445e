//! Questions read, and answers of our own written.

use std::net::IpAddr;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use super::zone::{Found, Zone};

/// Sandboxes come and go; whoever asks again a moment later gets the truth of that moment.
const TTL: u32 = 5;
/// What fits into a datagram without being asked for more.
const DATAGRAM: usize = 512;
const HEADER: usize = 12;

/// What to do with a question.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Answer(Vec<u8>),
    /// For another resolver.
    Forward,
    /// Not even a question: no answer.
    Ignore,
}

/// Answers what is ours. `datagram` says that the answer must fit into one.
pub fn reply(zone: &Zone, question: &[u8], datagram: bool) -> Reply {
    if question.len() < HEADER || is_response(question) {
        return Reply::Ignore;
    }
    let Ok(message) = Message::from_vec(question) else {
        return Reply::Answer(failure(question, ResponseCode::FormErr));
    };
    let [query] = message.queries.as_slice() else {
        return Reply::Answer(failure(question, ResponseCode::FormErr));
    };
    if message.metadata.op_code != OpCode::Query {
        return Reply::Answer(failure(question, ResponseCode::NotImp));
    }
    let found = match query.query_class {
        DNSClass::IN => zone.find(&query.name.to_ascii()),
        _ => Found::Elsewhere,
    };
    let mut answer = Message::response(message.metadata.id, OpCode::Query);
    match found {
        Found::Elsewhere => return Reply::Forward,
        Found::Nothing => answer.metadata.response_code = ResponseCode::NXDomain,
        // There are no records of other types.
        Found::Addresses(addresses) => {
            let data = addresses.into_iter().map(|address| match address {
                IpAddr::V4(address) => RData::A(A(address)),
                IpAddr::V6(address) => RData::AAAA(AAAA(address)),
            });
            let kind = query.query_type;
            let asked = data.filter(|data| kind == data.record_type() || kind == RecordType::ANY);
            answer.add_answers(asked.map(|data| Record::from_rdata(query.name.clone(), TTL, data)));
        }
    }
    answer.metadata.authoritative = true;
    answer.metadata.recursion_desired = message.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.add_query(query.clone());
    let room =
        if datagram { usize::from(message.max_payload()).max(DATAGRAM) } else { usize::from(u16::MAX) };
    match answer.to_vec() {
        Ok(bytes) if bytes.len() <= room => Reply::Answer(bytes),
        Ok(_) => Reply::Answer(answer.truncate().to_vec().unwrap_or_default()),
        Err(_) => Reply::Answer(failure(question, ResponseCode::ServFail)),
    }
}

/// An answer that only says what went wrong.
pub fn failure(question: &[u8], code: ResponseCode) -> Vec<u8> {
    Message::error_msg(id(question), OpCode::Query, code).to_vec().unwrap_or_default()
}

/// Whether `answer` is one to `question`: the same id and the same words.
pub fn answers(question: &[u8], answer: &[u8]) -> bool {
    let (Ok(asked), Ok(got)) = (Message::from_vec(question), Message::from_vec(answer)) else { return false };
    got.metadata.message_type == MessageType::Response
        && asked.metadata.id == got.metadata.id
        && asked.queries == got.queries
}

pub fn id(message: &[u8]) -> u16 {
    message.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// The same message under another number.
pub fn with_id(message: &[u8], id: u16) -> Vec<u8> {
    let mut bytes = message.to_vec();
    if let Some(first) = bytes.first_chunk_mut() {
        *first = id.to_be_bytes();
    }
    bytes
}

fn is_response(message: &[u8]) -> bool {
    message[2] & 0x80 != 0
}

#[cfg(test)]
pub mod tests {
    use std::net::Ipv4Addr;
    use std::str::FromStr;

    use hickory_proto::op::Query;
    use hickory_proto::rr::Name;

    use super::*;
    use crate::address6::Block6;
    use crate::policy::{Facts, Labels, Sandbox, Service};

    pub fn question(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::new(77, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_str(name).unwrap(), kind));
        message.to_vec().unwrap()
    }

    pub fn zone(sandboxes: usize) -> Zone {
        Zone::of(&facts(sandboxes, None), None)
    }

    /// So many sandboxes of one name, and a service `front`, if it has an address.
    fn facts(sandboxes: usize, service: Option<Ipv4Addr>) -> Facts {
        let sandbox = |at: usize| Sandbox {
            name: "web".to_owned(),
            namespace: "one".to_owned(),
            labels: Labels::new(),
            address: Ipv4Addr::from(0x0a58_0002 + at as u32),
            ports: vec![],
            host: None,
            ready: true,
        };
        let sandboxes = (0..sandboxes).map(|at| (at.to_string(), sandbox(at))).collect();
        let service = service.map(|address| Service {
            name: "front".to_owned(),
            namespace: "one".to_owned(),
            selector: None,
            address: Some(address),
            ports: vec![],
            sticky: false,
            unready: false,
        });
        let services = service.into_iter().map(|it| (it.name.clone(), it)).collect();
        Facts { sandboxes, services, ..Facts::default() }
    }

    fn answered(reply: Reply) -> Message {
        let Reply::Answer(bytes) = reply else { panic!("{reply:?}") };
        Message::from_vec(&bytes).unwrap()
    }

    #[test]
    fn a_name_of_ours_has_its_address_and_no_other_records() {
        let name = "web.one.svc.cluster.local.";
        let answer = answered(reply(&zone(1), &question(name, RecordType::A), true));
        assert_eq!((answer.metadata.id, answer.metadata.response_code), (77, ResponseCode::NoError));
        assert!(answer.metadata.authoritative && answer.metadata.recursion_available);
        assert_eq!(answer.answers[0].data, RData::A(A(Ipv4Addr::new(10, 88, 0, 2))));
        let none = answered(reply(&zone(1), &question(name, RecordType::AAAA), true));
        assert_eq!((none.metadata.response_code, none.answers.len()), (ResponseCode::NoError, 0));
        let unknown = answered(reply(&zone(1), &question("x.one.svc.cluster.local.", RecordType::A), true));
        assert_eq!(unknown.metadata.response_code, ResponseCode::NXDomain);
    }

    #[test]
    fn sandboxes_have_a_second_address_where_there_is_ipv6_and_services_have_not() {
        let block = Block6::of_tag("0a1b2c");
        let (own, service) = (Ipv4Addr::new(10, 88, 0, 2), Ipv4Addr::new(10, 127, 1, 1));
        let zone = Zone::of(&facts(1, Some(service)), Some(block));
        let ask = |name: &str| answered(reply(&zone, &question(name, RecordType::AAAA), true)).answers;
        let answers = ask("web.one.svc.cluster.local.");
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].data, RData::AAAA(AAAA(block.beside(own))));
        assert!(ask("front.one.svc.cluster.local.").is_empty());
    }

    #[test]
    fn what_does_not_fit_into_a_datagram_is_asked_for_again() {
        let asked = question("web.one.svc.cluster.local.", RecordType::A);
        assert!(answered(reply(&zone(100), &asked, true)).metadata.truncation);
        let whole = answered(reply(&zone(100), &asked, false));
        assert_eq!((whole.metadata.truncation, whole.answers.len()), (false, 100));
    }

    #[test]
    fn other_names_are_forwarded_and_rubbish_is_not() {
        assert_eq!(reply(&zone(0), &question("example.com.", RecordType::A), true), Reply::Forward);
        assert_eq!(reply(&zone(0), &[0; 5], true), Reply::Ignore);
        let mut response = question("example.com.", RecordType::A);
        response[2] |= 0x80;
        assert_eq!(reply(&zone(0), &response, true), Reply::Ignore, "an answer is never answered");
        let mut cut = question("example.com.", RecordType::A);
        cut.truncate(20);
        assert_eq!(answered(reply(&zone(0), &cut, true)).metadata.response_code, ResponseCode::FormErr);
    }

    #[test]
    fn an_answer_must_have_the_number_and_the_words_of_the_question() {
        let asked = question("example.com.", RecordType::A);
        let mut answer = Message::from_vec(&asked).unwrap().into_response();
        assert!(answers(&asked, &answer.to_vec().unwrap()));
        assert!(!answers(&asked, &with_id(&answer.to_vec().unwrap(), 78)));
        assert!(!answers(&asked, &asked), "a question is no answer");
        answer.queries[0].name = Name::from_str("evil.example.").unwrap();
        assert!(!answers(&asked, &answer.to_vec().unwrap()));
    }
}
