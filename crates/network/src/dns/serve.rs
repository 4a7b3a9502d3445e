//! Listens for questions of sandboxes, on datagrams and on streams.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::forward::{self, forward};
use super::message::{Reply, failure, joined, reply};
use super::pace::Pace;
use super::zone::Zone;

/// Questions that wait for other resolvers at the same time. More are answered with a failure at once.
const WAITING: usize = 256;
/// Streams that are open at the same time, in all and for one sandbox.
const STREAMS: usize = 256;
const STREAMS_OF_ONE: usize = 8;
/// How long a stream may be silent.
const SILENCE: Duration = Duration::from_secs(10);
/// No question is longer.
const QUESTION: usize = 4096;

/// What a resolver is made from.
pub struct Resolver {
    /// Where it listens.
    pub address: SocketAddr,
    /// Names the machine's resolvers; read again for every question that is theirs.
    pub resolv_conf: PathBuf,
    /// The names as they are at the moment.
    pub zone: Arc<dyn Fn() -> Arc<Zone> + Send + Sync>,
}

struct Shared {
    resolver: Resolver,
    pace: Mutex<Pace>,
    waiting: Semaphore,
    streams: Mutex<HashMap<IpAddr, usize>>,
}

/// Begins to listen; what comes back answers until it is dropped.
pub async fn serve(resolver: Resolver) -> io::Result<impl Future<Output = ()>> {
    let datagrams = Arc::new(UdpSocket::bind(resolver.address).await?);
    let streams = TcpListener::bind(datagrams.local_addr()?).await?;
    let shared = Arc::new(Shared {
        resolver,
        pace: Mutex::default(),
        waiting: Semaphore::new(WAITING),
        streams: Mutex::default(),
    });
    Ok(async move {
        tokio::join!(answer_datagrams(shared.clone(), datagrams), answer_streams(shared, streams));
    })
}

async fn answer_datagrams(shared: Arc<Shared>, socket: Arc<UdpSocket>) {
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; QUESTION];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            Some(_) = tasks.join_next() => continue,
        };
        // An error is about an earlier answer that could not be delivered.
        let Ok((length, from)) = received else { continue };
        if !shared.is_in_time(from.ip()) {
            continue;
        }
        let question = buffer[..length].to_vec();
        match shared.reply(&question, true) {
            Reply::Ignore => {}
            Reply::Answer(answer) => drop(socket.send_to(&answer, from).await),
            reply @ (Reply::Forward | Reply::Follow(_)) => {
                let (shared, socket) = (shared.clone(), socket.clone());
                tasks.spawn(async move {
                    let answer = shared.ask(&question, reply, true).await;
                    drop(socket.send_to(&answer, from).await);
                });
            }
        }
    }
}

async fn answer_streams(shared: Arc<Shared>, listener: TcpListener) {
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
        };
        match accepted {
            Ok((stream, from)) if tasks.len() < STREAMS => {
                if let Some(place) = Place::take(&shared, from.ip()) {
                    tasks.spawn(answer_stream(place, stream));
                }
            }
            Ok(_) => {}
            // Out of descriptors, most likely: a moment helps.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// One question after the other, until the other side has no more.
async fn answer_stream(place: Place, mut stream: TcpStream) {
    let shared = &place.shared;
    loop {
        let Ok(Ok(question)) = tokio::time::timeout(SILENCE, forward::read(&mut stream)).await else {
            return;
        };
        if !shared.is_in_time(place.of) {
            return;
        }
        let answer = match shared.reply(&question, false) {
            Reply::Ignore => return,
            Reply::Answer(answer) => answer,
            reply => shared.ask(&question, reply, false).await,
        };
        let written = tokio::time::timeout(SILENCE, forward::write(&mut stream, &answer)).await;
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

impl Shared {
    fn reply(&self, question: &[u8], datagram: bool) -> Reply {
        reply(&(self.resolver.zone)(), question, datagram)
    }

    /// Asks others for what is theirs.
    async fn ask(&self, question: &[u8], reply: Reply, datagram: bool) -> Vec<u8> {
        match reply {
            Reply::Follow(instead) => joined(question, &self.forward(&instead, datagram).await, datagram),
            _ => self.forward(question, datagram).await,
        }
    }

    async fn forward(&self, question: &[u8], datagram: bool) -> Vec<u8> {
        let Ok(_permit) = self.waiting.try_acquire() else {
            return failure(question, ResponseCode::ServFail);
        };
        let resolvers = forward::resolvers(&self.resolver.resolv_conf, self.resolver.address.ip());
        forward(&resolvers, question, datagram).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "a name could not be asked for");
            failure(question, ResponseCode::ServFail)
        })
    }

    fn is_in_time(&self, from: IpAddr) -> bool {
        let IpAddr::V4(from) = from else { return false };
        self.pace.lock().unwrap_or_else(PoisonError::into_inner).allows(from, Instant::now())
    }
}

/// One of the streams that a sandbox may have open; given back when dropped.
struct Place {
    shared: Arc<Shared>,
    of: IpAddr,
}

impl Place {
    fn take(shared: &Arc<Shared>, of: IpAddr) -> Option<Self> {
        let mut streams = shared.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let open = streams.entry(of).or_default();
        if *open >= STREAMS_OF_ONE {
            return None;
        }
        *open += 1;
        Some(Self { shared: shared.clone(), of })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut streams = self.shared.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = streams.get_mut(&self.of) {
            *open -= 1;
            if *open == 0 {
                streams.remove(&self.of);
            }
        }
    }
}

impl Resolver {
    /// The usual port of an address.
    pub fn at(
        address: Ipv4Addr,
        resolv_conf: PathBuf,
        zone: Arc<dyn Fn() -> Arc<Zone> + Send + Sync>,
    ) -> Self {
        Self { address: (address, 53).into(), resolv_conf, zone }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::{question, zone};
    use super::*;
    use hickory_proto::op::Message;
    use hickory_proto::rr::RecordType;

    /// A resolver on loopback, whose own resolver is `upstream`, which answers everything with an empty answer.
    async fn world(story: impl AsyncFnOnce(SocketAddr)) {
        static WORLDS: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(2);
        // An address that no other test has, of this process or another.
        let [low, high, ..] = std::process::id().to_le_bytes();
        let number = WORLDS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let address = Ipv4Addr::new(127, high, low, number);
        let upstream = UdpSocket::bind((address, 53)).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let resolv_conf = directory.path().join("resolv.conf");
        std::fs::write(&resolv_conf, format!("nameserver {address}\n")).unwrap();
        let names = Arc::new(zone(1));
        let serve_at = async |address| {
            let (resolv_conf, names) = (resolv_conf.clone(), names.clone());
            serve(Resolver { address, resolv_conf, zone: Arc::new(move || names.clone()) }).await
        };
        // A port that is free for one of the two sockets may not be for the other.
        let (free, serving) = loop {
            let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            match serve_at(free).await {
                Ok(serving) => break (free, serving),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::AddrInUse),
            }
        };
        let upstream_answers = async {
            let mut buffer = [0; 512];
            loop {
                let (length, from) = upstream.recv_from(&mut buffer).await.unwrap();
                let answer = Message::from_vec(&buffer[..length]).unwrap().into_response();
                // Somebody who guesses comes first, and is not believed.
                let mut guess = answer.to_vec().unwrap();
                guess[0] ^= 0xff;
                upstream.send_to(&guess, from).await.unwrap();
                upstream.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
            }
        };
        tokio::select! {
            () = serving => unreachable!(),
            () = upstream_answers => unreachable!(),
            () = story(free) => {}
        }
    }

    async fn ask(resolver: SocketAddr, question: &[u8]) -> Option<Message> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(question, resolver).await.unwrap();
        let mut buffer = [0; 512];
        let received = tokio::time::timeout(Duration::from_secs(5), socket.recv(&mut buffer)).await.ok()?;
        Some(Message::from_vec(&buffer[..received.unwrap()]).unwrap())
    }

    #[tokio::test]
    async fn ours_are_answered_and_others_are_forwarded() {
        world(async |resolver| {
            let ours = ask(resolver, &question("web.one.svc.cluster.local.", RecordType::A)).await.unwrap();
            assert_eq!(ours.answers.len(), 1);
            let other = ask(resolver, &question("example.com.", RecordType::A)).await.unwrap();
            assert_eq!((other.metadata.id, other.metadata.response_code), (77, ResponseCode::NoError));
            let name = "away.one.svc.cluster.local.";
            let away = ask(resolver, &question(name, RecordType::A)).await.unwrap();
            assert_eq!((away.metadata.id, away.queries[0].name.to_ascii().as_str()), (77, name));
            assert_eq!(away.answers[0].data.to_string(), "away.example.", "and the rest is what others say");
        })
        .await;
    }

    #[tokio::test]
    async fn streams_are_answered_and_only_a_few_are_open() {
        world(async |resolver| {
            let mut open = Vec::new();
            for _ in 0..STREAMS_OF_ONE {
                let mut stream = TcpStream::connect(resolver).await.unwrap();
                forward::write(&mut stream, &question("web.one.svc.cluster.local.", RecordType::A))
                    .await
                    .unwrap();
                let answer = forward::read(&mut stream).await.unwrap();
                assert_eq!(Message::from_vec(&answer).unwrap().answers.len(), 1);
                open.push(stream);
            }
            let mut surplus = TcpStream::connect(resolver).await.unwrap();
            assert!(forward::read(&mut surplus).await.is_err(), "turned away");
            drop(open);
        })
        .await;
    }
}
