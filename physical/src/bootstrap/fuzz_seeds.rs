//! Inputs of the fuzzers' corpus that ranks of this protocol send, made by their encoders.

use super::handshake::PROOF;
use super::handshake::message::{LENGTH, MessageWriter};
use super::handshake::tests::fixed_greeting;
use super::meeting::join_messages::{Hello, LeaderMessage, MemberMessage};
use super::meeting::peer_info::{JobSettings, JoinRequest, PeerInfo, PeerTable};
use super::sockets::dial::DialRequest;
use crate::control::seeds as control_seeds;
use crate::error::Peer;
use crate::testing::fuzzing::tests::Seed;

/// Number that the job of the seeds drew.
const JOB: [u8; 16] = [b'j'; 16];

fn info(rank: usize) -> PeerInfo {
    PeerInfo {
        rank,
        pid: 4242 + rank as u32,
        host: "host".into(),
        kernel: "3f1c".into(),
        machine: "3f1c net:[4026531840]".into(),
        announcement: format!("127.0.0.1:{}", 4000 + rank).into_bytes().into(),
    }
}

fn request() -> JoinRequest {
    let settings = JobSettings {
        size: 2,
        transport: "mixed".to_owned(),
        beat: 1000,
        silence: 30_000,
        configuration: "f32".to_owned(),
        digest: std::array::from_fn(|at| at as u8),
    };
    JoinRequest { info: info(1), settings, network: "3f1c net:[4026531840]".to_owned() }
}

/// Returns the fields of a message, as decoders get them.
fn fields(message: &MessageWriter) -> Vec<u8> {
    message.whole().split_off(LENGTH)
}

/// Returns a table of `infos`, after the number of ranks that its reader expects.
fn table(size: u8, infos: &[PeerInfo]) -> Vec<u8> {
    [vec![size], fields(&PeerTable::write(infos, &JOB, MessageWriter::default()))].concat()
}

/// Returns the seeds of the decoders of start-up.
pub(crate) fn seeds() -> Vec<Seed> {
    let peer = info(1).peer();
    let ended = Hello::Ended(Peer { rank: 3, ..peer.clone() }, "was ended by signal 9".to_owned());
    let hello = Hello::Rank(peer.clone(), 2).write();
    let greeting = fixed_greeting();
    let greeting_and_proof = [greeting.as_slice(), &[7; PROOF]].concat();
    let claim = [greeting_and_proof.as_slice(), &hello].concat();
    let infos = [info(0), info(1)];
    let give_up = MemberMessage::GiveUp("found no network".to_owned());
    let mut seeds = vec![
        ("handshake_callee", "greeting", greeting),
        ("handshake_callee", "greeting_and_proof", greeting_and_proof.clone()),
        ("handshake_callee", "greeting_proof_and_claim", claim),
        ("handshake_caller", "greeting_and_proof", greeting_and_proof),
        ("join_request", "hello", hello[LENGTH..].to_vec()),
        ("join_request", "ended", ended.write()[LENGTH..].to_vec()),
        ("join_request", "rank_1_of_2", fields(&MemberMessage::Join(Box::new(request())).write())),
        ("join_request", "gives_up", fields(&give_up.write())),
        ("peer_table", "two_ranks", table(2, &infos)),
        ("peer_table", "short", table(200, &infos[..1])),
        ("peer_table", "peers", fields(&LeaderMessage::peers(&infos, &JOB))),
        ("peer_table", "registered", fields(&LeaderMessage::registered(&peer))),
        ("peer_table", "refused", fields(&LeaderMessage::refused("it has another size", "give it 2"))),
        ("peer_table", "failed", fields(&LeaderMessage::failed(&peer, "died"))),
        ("call", "channel_7", DialRequest { channel: 7, socket: 0, rank: 1 }.to_bytes()[LENGTH..].to_vec()),
    ];
    seeds.extend(control_seeds());
    seeds
}
