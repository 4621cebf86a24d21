//! Every decoder of bytes from outside, for the fuzzers in `fuzz/`: none may panic, or allocate more than it is sent.
//!
//! Not part of the interface. The tests below replay the corpus of the fuzzers, and all inputs that have ever broken
//! a decoder.

use crate::backends::stream;
use crate::bootstrap;
use crate::transport::fingerprint::{FINGERPRINT_BYTES, Fingerprint};
use crate::transport::tag::{TAG_BYTES, Tag};

/// A decoder, and the name of its fuzzer and corpus.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [FuzzTarget; 11] = [
    ("frame_header", stream::fuzz::frame_header),
    ("inbox", stream::fuzz::inbox),
    ("label", label),
    ("handshake_callee", bootstrap::fuzz::callee),
    ("handshake_caller", bootstrap::fuzz::caller),
    ("message", bootstrap::fuzz::message),
    ("join_request", bootstrap::fuzz::join_request),
    ("peer_table", bootstrap::fuzz::peer_table),
    ("call", bootstrap::fuzz::call),
    ("control_message", bootstrap::fuzz::control_message),
    ("variables", bootstrap::fuzz::variables),
];

/// Runs the decoder of that name.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    assert!(target.is_some(), "unknown decoder {name}");
    target.into_iter().for_each(|(_, decode)| decode(data));
}

fn label(data: &[u8]) {
    if let Some((tag, rest)) = data.split_first_chunk::<TAG_BYTES>() {
        assert_eq!(&Tag::from_bytes(tag).to_bytes(), tag);
        if let Some(bytes) = rest.first_chunk::<FINGERPRINT_BYTES>()
            && let Some(fingerprint) = Fingerprint::from_bytes(bytes)
        {
            assert_eq!(Fingerprint::from_bytes(&fingerprint.to_bytes()), Some(fingerprint));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::sources;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    /// A decoder's name, a file of its corpus, and the bytes in it, which are written by the encoder of the decoder's peer.
    pub(crate) type Seed = (&'static str, &'static str, Vec<u8>);

    fn seeds() -> Vec<Seed> {
        [bootstrap::fuzz_seeds::seeds(), stream::fuzz::seeds()].concat()
    }

    /// Inputs made from each one of the corpus.
    const CHILDREN: usize = 2000;

    /// Returns the folder of the fuzzers, if the sources are here.
    fn fuzz() -> Option<PathBuf> {
        sources(env!("CARGO_MANIFEST_DIR")).map(|folder| folder.join("fuzz"))
    }

    fn corpus(fuzz: &Path, name: &str) -> Vec<Vec<u8>> {
        let files = std::fs::read_dir(fuzz.join("corpus").join(name)).unwrap();
        let inputs: Vec<_> = files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
        assert!(!inputs.is_empty(), "{name} has no corpus");
        inputs
    }

    #[test]
    fn every_decoder_has_a_fuzzer() {
        let Some(fuzz) = fuzz() else { return };
        let files = std::fs::read_dir(fuzz.join("fuzz_targets")).unwrap();
        let stem = |file: std::fs::DirEntry| file.path().file_stem().unwrap().to_string_lossy().into_owned();
        let fuzzers: BTreeSet<String> = files.map(|file| stem(file.unwrap())).collect();
        assert_eq!(fuzzers, TARGETS.map(|(name, _)| name.to_owned()).into());
        let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
        for (name, _) in TARGETS {
            assert!(
                manifest.contains(&format!("name = \"{name}\"")),
                "{name} is not in physical/fuzz/Cargo.toml"
            );
        }
    }

    /// A protocol that has changed leaves a corpus behind that its decoders refuse at the first field.
    #[test]
    fn the_corpus_speaks_the_protocol_of_this_build() {
        let Some(fuzz) = fuzz() else { return };
        for (name, file, bytes) in seeds() {
            let found = std::fs::read(fuzz.join("corpus").join(name).join(file)).unwrap_or_default();
            let remedy = "cargo test -p hexagram-physical --lib write_the_corpus -- --ignored";
            assert!(found == bytes, "physical/fuzz/corpus/{name}/{file} is of another protocol: {remedy}");
        }
    }

    #[test]
    #[ignore = "writes into physical/fuzz/corpus, after a change of the protocol"]
    fn write_the_corpus() {
        let Some(fuzz) = fuzz() else { return };
        for (name, file, bytes) in seeds() {
            std::fs::write(fuzz.join("corpus").join(name).join(file), bytes).unwrap();
        }
    }

    #[test]
    fn the_corpus_breaks_no_decoder() {
        let Some(fuzz) = fuzz() else { return };
        for (name, decode) in TARGETS {
            corpus(&fuzz, name).iter().for_each(|input| decode(input));
        }
    }

    /// xorshift64: the same numbers in every run.
    struct Xorshift(u64);

    impl Xorshift {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % bound.max(1) as u64) as usize
        }

        /// A few bytes replaced, cut, repeated or put in front.
        fn change(&mut self, input: &[u8]) -> Vec<u8> {
            const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
            let mut output = input.to_vec();
            for _ in 0..=self.below(4) {
                let at = self.below(output.len());
                let edge = EDGES[self.below(EDGES.len())];
                match self.below(5) {
                    0 => output.truncate(at),
                    1 => output.extend_from_within(at..),
                    2 => output.insert(at, self.below(256) as u8),
                    3 => output.iter_mut().skip(at).take(1).for_each(|byte| *byte = edge),
                    _ => output.iter_mut().skip(at).take(8).for_each(|byte| *byte = edge),
                }
            }
            output
        }
    }

    #[test]
    fn no_change_to_the_corpus_breaks_a_decoder() {
        let Some(fuzz) = fuzz() else { return };
        let mut numbers = Xorshift(0x9e37_79b9_7f4a_7c15);
        for (name, decode) in TARGETS {
            for input in corpus(&fuzz, name) {
                let mut child = input.clone();
                for generation in 0..CHILDREN {
                    // Occasionally restarts from the parent, so that children do not differ from it too much.
                    child = numbers.change(if generation % 8 == 0 { &input } else { &child });
                    child.truncate(1 << 14);
                    decode(&child);
                }
            }
        }
    }
}
