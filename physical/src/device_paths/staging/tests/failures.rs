//! Messages that could not be made: they are not sent, and end every operation that waits for their content.

use super::codecs::Refusing;
use super::*;

#[test]
fn a_message_that_could_not_be_made_ends_who_waits_for_its_answer() {
    let late = Late::new(0);
    for transport in on_threads() {
        // Neither fails while the other is still opening its endpoint, which would then fail.
        let open = Barrier::new(2);
        let errors = spawn(transport, 2, |world| {
            let mut end = End::new(&world, vec![late.queue()]);
            open.wait();
            let question = end.label(OperationKind::SendRecv, DType::U8, 4);
            let answer = end.label(OperationKind::SendRecv, DType::U8, 4);
            let [message, into] = [(); 2].map(|()| end.buffer(&[0u8; 4]));
            if world.rank() == 0 {
                return end.wait(end.recv(question, &into, ReceiveMode::Copy)).unwrap_err();
            }
            let x = end.buffer(&[f32::NAN]);
            let codec = Whole { fixed: true };
            message.write_all().unwrap().encode(&codec, &x.read_all().unwrap(), 0).unwrap().unwrap();
            let asked = end.send(question, &message, 4);
            let error = end.wait(end.recv(answer, &into, ReceiveMode::Copy)).unwrap_err();
            assert!(matches!(end.wait(asked), Err(Error::NotFinite { .. })));
            error
        });
        for error in &errors {
            assert!(error.to_string().contains("is NaN on rank 1"), "{transport}: {error}");
        }
        assert!(matches!(&errors[1], Error::NotFinite { index: 0, .. }), "{transport}: {}", errors[1]);
    }
}

#[test]
fn a_message_whose_codec_refused_is_not_sent_and_fails_whatever_waits() {
    for transport in on_threads() {
        for (awaits_answer, queues) in [(false, 1), (true, 1), (false, 3), (true, 3)] {
            // As above.
            let open = Barrier::new(2);
            spawn(transport, 2, |world| refuse(&world, &open, awaits_answer, queues));
        }
    }
}

/// Rank 0 sends a copy of a message that its codec refuses, and waits for that, or for the answer.
fn refuse(world: &World, open: &Barrier, awaits_answer: bool, queues: usize) {
    let late = Late::new(0);
    let mut end = End::new(world, (0..queues).map(|_| late.queue()).collect());
    open.wait();
    let label = end.label(OperationKind::SendRecv, DType::U8, 8);
    let gradient = end.buffer(&[f32::NAN; 8]);
    let message = end.buffer(&[0u8; 8]);
    let answer = Buffer::zeroed(DType::U8, 8).unwrap();
    if world.rank() == 1 {
        let received = end.wait(end.recv(label, &message, ReceiveMode::Copy));
        let blames = matches!(&received, Err(Error::PeerFailed { culprit, .. }) if culprit.rank == 0);
        assert!(blames, "{received:?}");
        return;
    }
    let mut to = message.write_all().unwrap();
    assert_eq!(to.encode(&Refusing, &gradient.read_all().unwrap(), 0).unwrap().unwrap(), 8);
    drop(to);
    let copy = end.buffer(&[0u8; 8]);
    copy.write_all().unwrap().copy_from(&message.read_all().unwrap()).unwrap();
    let send = end.send(label, &copy, 8);
    let outcome = match awaits_answer {
        true => end.wait(end.recv(label, &answer, ReceiveMode::Copy)),
        false => end.wait(send),
    };
    let names = matches!(&outcome, Err(Error::NotFinite { place, index: 3, .. }) if place.rank == 0);
    assert!(names, "{outcome:?}");
    assert!(answer.write_all().is_ok(), "its memory is free");
}

#[test]
fn a_message_fails_for_what_it_was_made_of_and_for_nothing_else() {
    for transport in on_threads() {
        spawn(transport, 1, |world| {
            let late = Late::new(0);
            let mut end = End::new(&world, vec![late.queue(), late.queue()]);
            let nan = end.buffer(&[f32::NAN]);
            let number = end.buffer(&[1.0f32]);
            let label = end.label(OperationKind::SendRecv, DType::F32, 1);
            let into = Buffer::zeroed(DType::F32, 1).unwrap();
            let received = end.recv(label, &into, ReceiveMode::Copy);
            let sent = end.send(label, &number, 1);
            // The queue fails after the message was copied, and before it is posted.
            let refused = Buffer::zeroed_on(&number.queue(), DType::U8, 4).unwrap();
            let mut to = refused.write_all().unwrap();
            to.encode(&Whole { fixed: true }, &nan.read_all().unwrap(), 0).unwrap().unwrap();
            assert!(number.queue().device().unwrap().record().wait(Duration::from_secs(60)));
            end.wait(sent).unwrap();
            end.wait(received).unwrap();
            // From now on, another operation may copy the message that the codec refused to make.
            let label = end.label(OperationKind::SendRecv, DType::F32, 1);
            match end.wait(end.send(label, &number, 1)) {
                Err(Error::NotFinite { index: 0, context: ErrorContext::Nothing, .. }) => {}
                other => panic!("{transport}: {other:?}"),
            }
        });
    }
}

/// The second copy is made after the first one has failed.
#[test]
fn no_copy_of_a_message_whose_codec_refused_is_sent() {
    for transport in on_threads() {
        let open = Barrier::new(3);
        let received = spawn(transport, 3, |world| {
            let late = Late::new(0);
            let mut end = End::new(&world, vec![late.queue()]);
            open.wait();
            let label = end.label(OperationKind::SendRecv, DType::U8, 8);
            let message = end.buffer(&[7u8; 8]);
            if world.rank() > 0 {
                let from = Source::Rank(0);
                let ticket =
                    end.transport.post_recv(from, label, message.write_all().unwrap(), ReceiveMode::Copy);
                return end.wait(Operation::new(end.terms(), ticket, from, label)).is_ok();
            }
            let gradient = end.buffer(&[f32::NAN; 8]);
            let encoded = message.write_all().unwrap().encode(&Refusing, &gradient.read_all().unwrap(), 0);
            assert_eq!(encoded.unwrap().unwrap(), 8);
            let sends = [1, 2].map(|to| {
                let ticket = end.transport.post_send(to, label, message.read_all().unwrap());
                Operation::new(end.terms(), ticket, Source::Rank(to), label)
            });
            let outcomes = sends.map(|send| end.wait(send));
            assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
            false
        });
        assert_eq!(received, [false; 3], "{transport}");
    }
}
