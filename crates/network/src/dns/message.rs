//! Questions read, and answers of our own written.

use std::net::IpAddr;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, PTR, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::zone::{Found, Records, Zone};

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
    /// The name is another one for what another resolver knows, which is to be asked this question.
    Follow(Vec<u8>),
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
        Found::Records(records) => {
            let alias = records.alias.clone();
            add(&mut answer, zone, query.name.clone(), query.query_type, records);
            let target = alias.filter(|_| query.query_type != RecordType::CNAME);
            if let Some(target) = target.and_then(|target| name(&target)) {
                match zone.find(&target.to_ascii()) {
                    // Not followed any further: a name of a name may be its own.
                    Found::Records(records) => add(&mut answer, zone, target, query.query_type, records),
                    Found::Nothing => answer.metadata.response_code = ResponseCode::NXDomain,
                    Found::Elsewhere => return follow(&message, target),
                }
            }
        }
    }
    answer.metadata.authoritative = true;
    answer.metadata.recursion_desired = message.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.add_query(query.clone());
    Reply::Answer(fitting(question, &message, &answer, datagram))
}

/// Adds what was asked for of a name's records, and with the names in them their addresses.
fn add(answer: &mut Message, zone: &Zone, of: Name, kind: RecordType, records: Records) {
    let Records { addresses, services, alias, pointers } = records;
    let targets: Vec<_> = services.iter().map(|(_, target)| target.clone()).collect();
    let services = services.iter().filter_map(|(port, target)| {
        // Priority and weight are those that other resolvers of clusters give.
        Some(RData::SRV(SRV::new(0, 100, *port, name(target)?)))
    });
    let alias = alias.and_then(|alias| name(&alias)).map(|alias| RData::CNAME(CNAME(alias)));
    let is_alias = alias.is_some();
    let pointers = pointers.iter().filter_map(|pointer| Some(RData::PTR(PTR(name(pointer)?))));
    let all = addresses.iter().map(data).chain(services).chain(alias).chain(pointers);
    let asked = |it: &RData| kind == it.record_type() || kind == RecordType::ANY || is_alias;
    answer.add_answers(all.filter(asked).map(|data| Record::from_rdata(of.clone(), TTL, data)));
    if kind == RecordType::SRV {
        for target in targets {
            let (Some(of), Found::Records(records)) = (name(&target), zone.find(&target)) else { continue };
            let data = records.addresses.iter().map(data);
            answer.add_additionals(data.map(|data| Record::from_rdata(of.clone(), TTL, data)));
        }
    }
}

fn data(address: &IpAddr) -> RData {
    match address {
        IpAddr::V4(address) => RData::A(A(*address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(*address)),
    }
}

/// A full name; `None` for what cannot be one.
fn name(text: &str) -> Option<Name> {
    Name::from_ascii(format!("{}.", text.trim_end_matches('.'))).ok()
}

/// The same question for another name.
fn follow(message: &Message, target: Name) -> Reply {
    let mut question = message.clone();
    question.queries.iter_mut().for_each(|query| query.name = target.clone());
    question.to_vec().map_or(Reply::Ignore, Reply::Follow)
}

/// The answer for a name of ours that is another one for what `followed` was asked and answered.
pub fn joined(question: &[u8], followed: &[u8], datagram: bool) -> Vec<u8> {
    let failed = || failure(question, ResponseCode::ServFail);
    let (Ok(asked), Ok(mut answer)) = (Message::from_vec(question), Message::from_vec(followed)) else {
        return failed();
    };
    let [query] = asked.queries.as_slice() else { return failed() };
    let Some(target) = answer.queries.first().map(|query| query.name.clone()) else { return failed() };
    let alias = Record::from_rdata(query.name.clone(), TTL, RData::CNAME(CNAME(target)));
    answer.answers.insert(0, alias);
    answer.queries = vec![query.clone()];
    fitting(question, &asked, &answer, datagram)
}

/// The bytes of an answer, or what of it fits.
fn fitting(question: &[u8], asked: &Message, answer: &Message, datagram: bool) -> Vec<u8> {
    let room = if datagram { usize::from(asked.max_payload()).max(DATAGRAM) } else { usize::from(u16::MAX) };
    match answer.to_vec() {
        Ok(bytes) if bytes.len() <= room => bytes,
        Ok(_) => answer.truncate().to_vec().unwrap_or_default(),
        Err(_) => failure(question, ResponseCode::ServFail),
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

    use super::*;
    use crate::address6::Block6;
    use crate::policy::{Facts, Labels, Sandbox, Service, ServicePort, Target};
    use crate::rules::Protocol;
    use hickory_proto::op::Query;

    pub fn question(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::new(77, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_str(name).unwrap(), kind));
        message.to_vec().unwrap()
    }

    /// So many sandboxes of one name, and `away`, which is another name for `away.example`.
    pub fn zone(sandboxes: usize) -> Zone {
        let mut facts = facts(sandboxes, Some(Ipv4Addr::LOCALHOST));
        let (_, service) = facts.services.pop_first().unwrap();
        let (address, external) = (None, Some("away.example".to_owned()));
        let away = Service { name: "away".to_owned(), address, external, ..service };
        facts.services.insert("away".to_owned(), away);
        Zone::of(&facts, None)
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
            external: None,
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

    #[test]
    fn ports_come_with_the_addresses_of_where_they_are() {
        let mut facts = facts(1, Some(Ipv4Addr::new(10, 127, 1, 1)));
        let port = ServicePort {
            name: Some("http".into()),
            protocol: Protocol::Tcp,
            port: 80,
            target: Target::Number(8080),
        };
        facts.services.get_mut("front").unwrap().ports = vec![port];
        let zone = Zone::of(&facts, None);
        let asked = question("_http._tcp.front.one.svc.cluster.local.", RecordType::SRV);
        let answer = answered(reply(&zone, &asked, true));
        let target = Name::from_str("front.one.svc.cluster.local.").unwrap();
        assert_eq!(answer.answers[0].data, RData::SRV(SRV::new(0, 100, 80, target.clone())));
        assert_eq!(answer.additionals[0].name, target);
        assert_eq!(answer.additionals[0].data, RData::A(A(Ipv4Addr::new(10, 127, 1, 1))));
        let pointer = answered(reply(&zone, &question("1.1.127.10.in-addr.arpa.", RecordType::PTR), true));
        assert_eq!(pointer.answers[0].data, RData::PTR(PTR(target)));
    }

    #[test]
    fn another_name_is_followed_here_or_elsewhere() {
        let with = |target: &str| {
            let mut facts = facts(1, Some(Ipv4Addr::new(10, 127, 1, 1)));
            let service = facts.services.get_mut("front").unwrap();
            (service.address, service.external) = (None, Some(target.to_owned()));
            Zone::of(&facts, None)
        };
        let name = "front.one.svc.cluster.local.";
        let asked = question(name, RecordType::A);
        let here = answered(reply(&with("web.one.svc.cluster.local"), &asked, true));
        assert_eq!((here.answers.len(), here.answers[0].record_type()), (2, RecordType::CNAME));
        assert_eq!(here.answers[1].data, RData::A(A(Ipv4Addr::new(10, 88, 0, 2))));
        let itself = answered(reply(&with("front.one.svc.cluster.local"), &asked, true));
        assert_eq!(itself.answers.len(), 2, "a name of itself ends");
        let only = answered(reply(&with("away.example"), &question(name, RecordType::CNAME), true));
        assert_eq!(only.answers.len(), 1);

        let Reply::Follow(followed) = reply(&with("away.example"), &asked, true) else {
            panic!("not followed")
        };
        let mut away = Message::from_vec(&followed).unwrap().into_response();
        assert_eq!(away.queries[0].name, Name::from_str("away.example.").unwrap());
        let data = RData::A(A(Ipv4Addr::new(192, 0, 2, 1)));
        away.add_answer(Record::from_rdata(away.queries[0].name.clone(), 60, data.clone()));
        let whole = Message::from_vec(&joined(&asked, &away.to_vec().unwrap(), true)).unwrap();
        assert_eq!(whole.queries[0].name, Name::from_str(name).unwrap());
        assert_eq!(whole.answers[0].data.to_string(), "away.example.");
        assert_eq!((&whole.answers[1].data, whole.metadata.id), (&data, 77));
        let rubbish = Message::from_vec(&joined(&asked, &[1, 2], true)).unwrap();
        assert_eq!(rubbish.metadata.response_code, ResponseCode::ServFail);
    }
}
