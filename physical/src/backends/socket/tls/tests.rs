//! Jobs inside TLS, with certificates made here: equal results, and clear errors where the files do not fit.

use super::*;
use crate::ReduceOp;
use crate::bootstrap::handshake::secret;
use crate::bootstrap::{Launcher, Placement, Rendezvous};
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::operation::{Operation, OperationContext, Poison};
use crate::transport::tag::Tag;
use crate::transport::{Label, ReceiveMode, Source, TransportKind};
use crate::waiting::drive;
use crate::world::{JoinOptions, World};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// Certificate authority in a temporary folder, which is removed after the test.
struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("hexagram-tls-{}", secret::draw().unwrap()));
        std::fs::create_dir(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, secret::draw().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        Authority { folder, issuer }
    }

    /// Creates the files of a rank with a certificate for `name`.
    fn sign(&self, name: &str) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let path = |file: &str| self.folder.join(format!("{}-{file}", secret::draw().unwrap()));
        let files = TlsFiles {
            certificate: path("cert.pem"),
            key: path("key.pem"),
            authority: self.folder.join("ca.pem"),
        };
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o600)).unwrap();
        files
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

fn free_port() -> u16 {
    crate::testing::free_port()
}

fn join(rank: usize, size: usize, port: u16, tls: Option<TlsFiles>, seconds: u64) -> Result<World> {
    let rendezvous = Rendezvous::Tcp { host: "127.0.0.1".into(), port, agent: false };
    let secret = b"secret".to_vec();
    let launcher = Launcher::Hexagram;
    let placement =
        Placement { rank, size, local_rank: rank, local_size: size, rendezvous, secret, launcher };
    let transport = TransportKind::Tcp;
    let deadline = Duration::from_secs(seconds);
    World::join_as(&placement, &JoinOptions { transport, deadline, tls, ..JoinOptions::default() })
}

/// Returns the errors of rank 0, which waits for 5 s, and of rank 1, which would wait longer than the test may take.
fn errors(zero: Option<TlsFiles>, one: Option<TlsFiles>) -> [String; 2] {
    let port = free_port();
    let zero = std::thread::spawn(move || join(0, 2, port, zero, 5).err().unwrap().to_string());
    let one = join(1, 2, port, one, 600).err().unwrap().to_string();
    [zero.join().unwrap(), one]
}

/// Sends this rank's numbers to all others, and adds up all numbers.
fn sum(world: &World, len: usize) -> Vec<f32> {
    const LONG: Duration = Duration::from_secs(60);
    let transport = world.open(0).unwrap();
    let rank = world.rank();
    let size = world.size();
    let poison = Poison::default();
    let terms = OperationContext { transport: &*transport, poison: &poison, deadline: LONG };
    let fingerprint = Fingerprint::new(OperationKind::AllReduce, DType::F32, len);
    let label = Label { tag: Tag::new(0, 0, 0, 0).unwrap(), fingerprint };
    let mine: Vec<f32> = (0..len).map(|i| (i % 1000 + rank) as f32).collect();
    let mine = Buffer::from_slice(&mine).unwrap();
    let total = mine.copied().unwrap();
    let others = || (0..size).filter(|peer| *peer != rank);
    let sends: Vec<_> = others()
        .map(|peer| {
            let ticket = transport.post_send(peer, label, mine.read(0..len).unwrap());
            Operation::new(terms, ticket, Source::Rank(peer), label)
        })
        .collect();
    drive::block_on(&*transport, async {
        for peer in others() {
            let view = total.write(0..len).unwrap();
            let ticket =
                transport.post_recv(Source::Rank(peer), label, view, ReceiveMode::Reduce(ReduceOp::Sum));
            Operation::new(terms, ticket, Source::Rank(peer), label).await.unwrap();
        }
        for send in sends {
            send.await.unwrap();
        }
    });
    total.host::<f32>().unwrap().to_vec()
}

#[test]
fn sums_are_the_same_inside_tls() {
    let authority = Authority::new();
    for len in [0, 1, 1000, (1 << 20) + 3] {
        let sums = |tls: [Option<TlsFiles>; 3]| {
            let port = free_port();
            std::thread::scope(|scope| {
                let ranks: Vec<_> = tls
                    .into_iter()
                    .enumerate()
                    .map(|(rank, tls)| scope.spawn(move || sum(&join(rank, 3, port, tls, 60).unwrap(), len)))
                    .collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
            })
        };
        let inside = sums([(); 3].map(|()| Some(authority.sign("hexagram"))));
        assert_eq!(inside, sums([None, None, None]), "{len} elements");
    }
}

#[test]
fn one_side_without_tls_is_told_so_on_both() {
    let authority = Authority::new();
    let [zero, one] = errors(Some(authority.sign("hexagram")), None);
    assert!(zero.contains("does not speak TLS"), "{zero}");
    assert!(one.contains("the other side speaks TLS"), "{one}");
    let [zero, one] = errors(None, Some(authority.sign("hexagram")));
    assert!(zero.contains("a peer speaks TLS and this rank does not"), "{zero}");
    assert!(one.contains("the TLS handshake failed") && one.contains("UnexpectedMessage"), "{one}");
}

#[test]
fn certificates_of_another_authority_are_refused_on_both_sides() {
    let ours = Authority::new();
    let theirs = Authority::new();
    let [zero, one] = errors(Some(ours.sign("hexagram")), Some(theirs.sign("hexagram")));
    for error in [zero, one] {
        assert!(error.contains("the TLS handshake failed") && error.contains("Unknown"), "{error}");
    }
    // Trusts the others, and is not trusted.
    let halfway = TlsFiles { authority: ours.folder.join("ca.pem"), ..theirs.sign("hexagram") };
    let error = Tls::load(&halfway).unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer"), "{error}");
}

#[test]
fn unusable_files_are_named() {
    let authority = Authority::new();
    let good = authority.sign("hexagram");
    assert!(Tls::load(&good).is_ok());
    let refusal = |files: TlsFiles| Tls::load(&files).unwrap_err().to_string();
    let nowhere = PathBuf::from("/does/not/exist");
    for files in [
        TlsFiles { certificate: nowhere.clone(), ..good.clone() },
        TlsFiles { key: nowhere.clone(), ..good.clone() },
        TlsFiles { authority: nowhere.clone(), ..good.clone() },
    ] {
        assert!(refusal(files).contains("/does/not/exist"));
    }
    let endless = refusal(TlsFiles { certificate: "/dev/zero".into(), ..good.clone() });
    assert!(endless.contains("/dev/zero") && endless.contains("a pipe or a device"), "{endless}");
    let folder = refusal(TlsFiles { authority: authority.folder.clone(), ..good.clone() });
    assert!(folder.contains("it is a folder, not a file"), "{folder}");
    let swapped = TlsFiles { certificate: good.key.clone(), ..good.clone() };
    assert!(refusal(swapped).contains("it holds none"));
    let swapped = TlsFiles { key: good.certificate.clone(), ..good.clone() };
    assert!(refusal(swapped).contains("private key"));
    let anothers = TlsFiles { key: authority.sign("hexagram").key, ..good.clone() };
    assert!(refusal(anothers).contains("certificate"), "a key that does not fit");
    assert!(refusal(authority.sign("example.org")).contains("the name `hexagram`"));
    std::fs::set_permissions(&good.key, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refusal(good).contains("chmod 600"));
}

/// Creates two ends of a connection, neither of which blocks.
fn pair() -> (TlsSession, TlsSession) {
    let authority = Authority::new();
    let tls = Tls::load(&authority.sign("hexagram")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut one = tls.call(stream).unwrap();
    let mut two = tls.accept(listener.accept().unwrap().0).unwrap();
    one.tcp().set_nonblocking(true).unwrap();
    two.tcp().set_nonblocking(true).unwrap();
    let mut nothing = Vec::new();
    while one.connection.is_handshaking() || two.connection.is_handshaking() {
        read_some(&mut one, &mut nothing);
        read_some(&mut two, &mut nothing);
    }
    assert!(nothing.is_empty());
    (one, two)
}

/// Reads the available bytes.
fn read_some(end: &mut TlsSession, into: &mut Vec<u8>) {
    let mut piece = [0; 5000];
    match end.read(&mut piece) {
        Ok(bytes) => into.extend_from_slice(&piece[..bytes]),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
    }
}

#[test]
fn a_full_socket_neither_loses_nor_repeats_a_byte() {
    let (mut one, mut two) = pair();
    let bytes: Vec<u8> = (0..20_000_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let mut written = 0;
    let mut read = Vec::new();
    let mut full = 0;
    while read.len() < bytes.len() {
        let rest = &bytes[written..];
        let (a, b) = rest.split_at(rest.len().min(70_001 + full % 3));
        match one.write_vectored(&[IoSlice::new(a), IoSlice::new(b)]) {
            Ok(now) => written += now,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                full += 1;
                // Far enough behind that the socket is full now and then.
                (0..100).for_each(|_| read_some(&mut two, &mut read));
            }
        }
        if rest.is_empty() {
            read_some(&mut two, &mut read);
        }
    }
    assert!(full > 10, "the socket was full only {full} times");
    assert!(read == bytes);
}

#[test]
fn written_bytes_arrive_although_nobody_drives_this_side_any_more() {
    let (mut one, mut two) = pair();
    let bytes = vec![7; 1 << 16];
    let mut written = 0;
    let mut read = Vec::new();
    while let Ok(now) = one.write(&bytes) {
        written += now;
    }
    while read.len() < written {
        read_some(&mut two, &mut read);
    }
}

#[test]
fn an_end_is_told_from_a_cut() {
    let (one, mut two) = pair();
    drop(one);
    two.stream.set_nonblocking(false).unwrap();
    assert_eq!(two.read(&mut [0; 10]).unwrap(), 0);
    let (one, mut two) = pair();
    one.stream.shutdown(std::net::Shutdown::Both).unwrap();
    two.stream.set_nonblocking(false).unwrap();
    assert!(two.read(&mut [0; 10]).is_err());
}
