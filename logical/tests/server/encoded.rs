//! Traffic: encoded pushes and pulls, and the bytes of both.

use super::*;

/// Keeps the integer part, one byte each: feedback must compensate the error.
#[derive(Debug)]
struct Integers;

impl Codec for Integers {
    fn name(&self) -> String {
        "integers".to_owned()
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: false, contraction: None, linear: false, noise: Noise::Absolute }
    }

    fn encoded_len(&self, len: usize) -> usize {
        len
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        for (index, (x, code)) in from.iter().zip(to).enumerate() {
            if !x.is_finite() {
                return Err(CodecError::NotFinite { index, value: *x });
            }
            *code = *x as i8 as u8;
        }
        Ok(from.len())
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        if from.len() != to.len() {
            return Err(CodecError::damaged("one byte for each number is missing"));
        }
        to.iter_mut().zip(from).for_each(|(x, code)| *x += weight * f32::from(*code as i8));
        Ok(())
    }
}

pub(super) fn with_feedback(feedback: Feedback) -> ServerOptions {
    ServerOptions {
        pushed: Some(Encoding::new(Arc::new(Integers)).with_feedback(feedback)),
        pulled: Some(Encoding::new(Arc::new(Half::BF16))),
    }
}

#[test]
fn what_is_pushed_encoded_arrives_in_the_end_with_error_feedback_and_not_without() {
    const LEN: usize = 500;
    matrix(&RANKS, |comm| {
        for (feedback, want) in [(Feedback::Error, 6.0), (Feedback::None, 0.0)] {
            let (clock, mut server) = begin(comm, 0, LEN, Add, with_feedback(feedback))?;
            for _ in 0..8 {
                server.blocking().push(0..LEN, &vector(&[0.75; LEN]))?;
                clock.tick();
            }
            clock.blocking().settle()?;
            let mut x = vector(&[1.0; LEN]);
            server.blocking().pull(0..LEN, &mut x)?;
            assert_eq!(read(&x), [want * comm.size() as f32; LEN]);
            let remembered = server.pushed().unwrap().state().bytes();
            assert_eq!(remembered, if feedback == Feedback::Error { 4 * LEN } else { 0 });
        }
        Ok(())
    });
}

#[test]
fn a_codec_that_refuses_a_delta_is_an_error_that_names_the_element() {
    if skipped_under_mpi("it is about a call that sends nothing") {
        return;
    }
    spawn(TransportKind::Shm, 2, |comm| {
        let (_clock, mut server) = begin(&comm, 0, 10, Add, with_feedback(Feedback::None))?;
        let mut delta = [1.0; 6];
        delta[5] = f32::NAN;
        match server.blocking().push(3..9, &vector(&delta)) {
            Err(Error::NotFinite { place, index: 5, .. }) => assert_eq!(place.rank, comm.rank()),
            other => panic!("{other:?}"),
        }
        comm.blocking().barrier()
    })
    .unwrap();
}

/// Bytes that each rank sends to push and pull `len` elements of which it keeps its own chunk.
fn push_and_pull(n: usize, pushed: usize, pulled: usize) -> usize {
    let apart = |bytes: usize| if bytes > INLINE_BYTES { HEADER_BYTES + bytes } else { bytes };
    // As often as it asks others, it is asked.
    (n - 1) * (2 * (2 * HEADER_BYTES + REQUEST_BYTES + REPLY_BYTES) + apart(pushed) + apart(pulled))
}

#[test]
fn bytes_sent_are_those_of_the_formulas() {
    // Divisible by all numbers of ranks; payloads that ride along, and payloads that do not.
    for len in [840, 840 * 40] {
        for (transport, n) in cases(&RANKS) {
            for (options, widths) in
                [(ServerOptions::default as fn() -> _, [4, 4]), (|| with_feedback(Feedback::None), [1, 2])]
            {
                let sent = spawn(transport, n, |comm| {
                    let (clock, mut server) = begin(&comm, 0, len, Add, options())?;
                    let sent = || comm.world().traffic().bytes_sent();
                    // The traffic of a barrier except the first, without other operations.
                    comm.blocking().barrier()?;
                    let before = sent();
                    comm.blocking().barrier()?;
                    let barrier = sent() - before;
                    let before = before + barrier;
                    comm.blocking().barrier()?;
                    server.blocking().push(0..len, &vector(&vec![1.0; len]))?;
                    server.blocking().pull(0..len, &mut vector(&vec![0.0; len]))?;
                    // All have the answers to all they asked.
                    comm.blocking().barrier()?;
                    let pushed = sent() - before - 2 * barrier;
                    comm.blocking().barrier()?;
                    let before = sent();
                    clock.tick();
                    clock.blocking().wait()?;
                    comm.blocking().barrier()?;
                    Ok((pushed, sent() - before - barrier))
                });
                let [push, pull] = widths.map(|width| width * len / n);
                let clock = (n - 1) * (2 * HEADER_BYTES + REQUEST_BYTES + REPLY_BYTES);
                for sent in sent.unwrap() {
                    let want = (push_and_pull(n, push, pull) as u64, clock as u64);
                    assert_eq!(sent, want, "{len} elements, {n} ranks over {transport}");
                }
            }
        }
    }
}
