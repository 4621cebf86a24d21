//! The device with delayed work: results have the host's bits, and without any one wait they do not.

use super::*;
use crate::device::codec::{Noise, Properties};
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;

/// Sends numbers to and fro between three queues, so that every kind of wait is needed, and returns them.
pub(crate) fn relay(queues: &[Queue; 3]) -> Result<Vec<f32>> {
    let [a, b, c] = queues;
    let mut x = Buffer::from_slice_on(a, &[1.0f32, 2.0, 3.0, 4.0])?;
    let y = Buffer::from_slice_on(b, &[10.0f32, 20.0, 30.0, 40.0])?;
    let z = Buffer::zeroed_on(c, DType::F32, 4)?;
    for round in 0..3 {
        // Reads values that another queue writes.
        y.write_all()?.reduce(ReduceOp::Sum, &x.read_all()?)?;
        z.write_all()?.weighted_sum(&[
            (0.5, Some(&x.read_all()?)),
            (2.0, Some(&y.read_all()?)),
            (1.0, None),
        ])?;
        // Writes values that others still read.
        x.write_all()?.add_scaled(f64::from(round), &z.read_all()?)?;
        y.write(0..2)?.copy_from(&z.read(2..4)?)?;
        x.host_mut::<f32>()?[3] += 1.0;
    }
    z.write_all()?.add_scaled(1.0, &y.read_all()?)?;
    let sum = z.copied()?;
    sum.write_all()?.add_scaled(1.0, &x.read_all()?)?;
    Ok(sum.host::<f32>()?.to_vec())
}

fn on(late: &Late) -> Result<Vec<f32>> {
    relay(&[late.queue(), late.queue(), late.queue()])
}

fn on_host() -> Vec<f32> {
    relay(&[Queue::host(), Queue::host(), Queue::host()]).unwrap()
}

#[test]
fn every_order_has_the_bits_of_the_host() {
    let want = on_host();
    for seed in 0..40 {
        assert_eq!(on(&Late::new(seed)).unwrap(), want, "seed {seed}");
    }
    let one = Late::new(0).queue();
    assert_eq!(relay(&[one.clone(), one.clone(), one]).unwrap(), want, "one queue never waits");
}

#[test]
fn host_and_devices_mix() {
    let want = on_host();
    let late = Late::new(3);
    let other = Late::new(4);
    for place in 0..3 {
        let mut queues = [late.queue(), other.queue(), late.queue()];
        queues[place] = Queue::host();
        assert_eq!(relay(&queues).unwrap(), want, "the host is queue {place}");
    }
}

#[test]
fn one_queue_needs_no_event() {
    let late = Late::new(0);
    let queue = late.queue();
    relay(&[queue.clone(), queue.clone(), queue]).unwrap();
    assert_eq!(late.queue_waits(), 0);
}

/// Returns how many waits of queues, and events, `work` makes.
fn counted(late: &Late, work: impl FnOnce()) -> (u64, u64) {
    let waits = late.queue_waits();
    let events = late.events();
    work();
    (late.queue_waits() - waits, late.events() - events)
}

#[test]
fn work_waits_for_one_event_of_each_other_queue_that_touched_its_operands() {
    type Operation = fn(&mut WriteView, &ReadView);
    let ops: [(&str, Operation); 5] = [
        ("copy", |to, from| to.copy_from(from).unwrap()),
        ("reduce", |to, from| to.reduce(ReduceOp::Sum, from).unwrap()),
        ("add", |to, from| to.add_scaled(2.0, from).unwrap()),
        ("weigh", |to, from| to.weighted_sum(&[(2.0, Some(from)), (1.0, None)]).unwrap()),
        ("decode", |to, from| to.decode(&Whole { fixed: true }, from, None).unwrap_or(Ok(())).unwrap()),
    ];
    for (name, op) in ops {
        for others in [0, 1] {
            let late = Late::new(0);
            let own = late.queue();
            let queue = if others == 0 { own.clone() } else { late.queue() };
            let x = Buffer::from_slice_on(&queue, &[1.0f32; 4]).unwrap();
            let y = Buffer::from_slice_on(&own, &[1.0f32; 4]).unwrap();
            let op = || op(&mut y.write_all().unwrap(), &x.read_all().unwrap());
            let write = || x.write_all().unwrap().clear();
            // Events: after the last write of x, and after each read of another queue.
            assert_eq!(counted(&late, op), (others, 2 * others), "{name} after a write");
            assert_eq!(counted(&late, op), (others, others), "{name} after another");
            assert_eq!(counted(&late, write), (others, 0), "a write after {name}");
            assert_eq!(counted(&late, write), (0, 0), "a write after a write");
            assert_eq!(counted(&late, || y.write_all().unwrap().scale(2.0).unwrap()), (0, 0), "its own");
        }
    }
}

#[test]
fn a_sum_waits_for_each_of_its_terms() {
    let late = Late::new(0);
    let [x, y, z] = [(); 3].map(|()| Buffer::from_slice_on(&late.queue(), &[1.0f32; 4]).unwrap());
    let sum = || {
        let terms = [(2.0, Some(&x.read_all().unwrap())), (1.0, Some(&y.read_all().unwrap()))];
        z.write_all().unwrap().weighted_sum(&terms).unwrap();
    };
    assert_eq!(counted(&late, sum), (2, 4));
}

/// Checks that a program goes wrong if one of these waits of a queue is left out, or those of the host.
fn goes_wrong(waits: &[u64], program: impl Fn(&Late) -> Result<Vec<f32>>) {
    let late = Late::new(0);
    let want = program(&late).unwrap();
    assert_eq!(late.queue_waits(), waits.last().unwrap() + 1);
    for wait in waits {
        let got = program(&Late::leaving_out(Omission::QueueWait(*wait)));
        assert!(got.is_err() || got.is_ok_and(|got| got != want), "wait {wait} changes nothing");
    }
    let got = program(&Late::leaving_out(Omission::HostWaits));
    assert!(got.is_err() || got.is_ok_and(|got| got != want), "waits of the host change nothing");
}

#[test]
fn a_reader_waits_for_the_writer() {
    goes_wrong(&[0], |late| {
        let x = Buffer::from_slice_on(&late.queue(), &[1.0f32, 2.0])?;
        let y = Buffer::from_slice_on(&late.queue(), &[3.0f32, 4.0])?;
        y.write_all()?.reduce(ReduceOp::Sum, &x.read_all()?)?;
        Ok(y.host::<f32>()?.to_vec())
    });
}

#[test]
fn a_writer_waits_for_the_reader() {
    // Before wait 0 the program has waited itself.
    goes_wrong(&[1], |late| {
        let x = Buffer::from_slice_on(&late.queue(), &[1.0f32, 2.0])?;
        let y = Buffer::zeroed_on(&late.queue(), DType::F32, 2)?;
        x.queue().check()?;
        y.write_all()?.copy_from(&x.read_all()?)?;
        x.write_all()?.scale(10.0)?;
        let x = x.host::<f32>()?.to_vec();
        Ok([x, y.host::<f32>()?.to_vec()].concat())
    });
}

#[test]
fn a_second_write_is_waited_for_as_the_first() {
    // Before wait 1 the program has waited itself.
    goes_wrong(&[0, 2], |late| {
        let x = Buffer::from_slice_on(&late.queue(), &[1.0f32, 2.0])?;
        let y = Buffer::zeroed_on(&late.queue(), DType::F32, 2)?;
        y.write_all()?.add_scaled(1.0, &x.read_all()?)?;
        let before = y.host::<f32>()?.to_vec();
        x.write_all()?.scale(3.0)?;
        y.write_all()?.add_scaled(1.0, &x.read_all()?)?;
        Ok([before, y.host::<f32>()?.to_vec()].concat())
    });
}

#[test]
fn a_dropped_buffer_lives_until_its_work_is_done() {
    let late = Late::new(0);
    let y = Buffer::zeroed_on(&late.queue(), DType::F64, 3).unwrap();
    for _ in 0..10 {
        let x = Buffer::from_slice_on(&late.queue(), &[1.0f64, 2.0, 3.0]).unwrap();
        y.write_all().unwrap().reduce(ReduceOp::Sum, &x.read_all().unwrap()).unwrap();
    }
    drop(late);
    assert_eq!(*y.host::<f64>().unwrap(), [10.0, 20.0, 30.0]);
}

#[test]
fn busy_memory_is_busy_as_on_the_host() {
    let mut x = Buffer::zeroed_on(&Late::new(0).queue(), DType::I32, 4).unwrap();
    assert!(x.idle_bytes().is_none());
    let view = x.write(1..2).unwrap();
    assert!(matches!(x.host::<i32>(), Err(Error::Busy { .. })));
    assert!(matches!(x.read(0..2), Err(Error::Busy { .. })));
    drop(view);
    x.host_mut::<i32>().unwrap()[2] = 7;
    let guard = x.host::<i32>().unwrap();
    assert_eq!(*guard, [0, 0, 7, 0]);
    assert!(matches!(x.write(0..1), Err(Error::Busy { .. })));
}

#[test]
#[should_panic(expected = "gives no bytes")]
fn a_view_of_a_device_never_passes_for_empty_host_memory() {
    let x = Buffer::from_slice_on(&Late::new(0).queue(), &[1.0f32]).unwrap();
    let _ = x.read_all().unwrap().bytes();
}

/// Keeps every number, and refuses NaN.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) fixed: bool,
}

impl Codec for Whole {
    fn name(&self) -> String {
        "whole".to_owned()
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: true, contraction: Some(1.0), linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        4 * len
    }

    fn has_fixed_size(&self) -> bool {
        self.fixed
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        self.fixed.then(|| Arc::new(Whole { fixed: true }) as Arc<dyn Codec>)
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        if let Some(index) = from.iter().position(|x| x.is_nan()) {
            return Err(CodecError::NotFinite { index, value: from[index] });
        }
        to[..4 * from.len()].copy_from_slice(bytemuck::cast_slice(from));
        Ok(4 * from.len())
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        if from.len() != 4 * to.len() {
            return Err(CodecError::damaged("too long or too short"));
        }
        let numbers = from.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]));
        to.iter_mut().zip(numbers).for_each(|(to, x)| *to += weight * x);
        Ok(())
    }
}

#[test]
fn codecs_have_the_bits_of_the_host_with_and_without_a_kernel() {
    for fixed in [false, true] {
        let codec = Whole { fixed };
        let late = Late::new(0);
        let x = Buffer::from_slice_on(&late.queue(), &[1.0f32, -2.0]).unwrap();
        let message = Buffer::zeroed_on(&late.queue(), DType::U8, 9).unwrap();
        let y = Buffer::from_slice_on(&late.queue(), &[0.5f32, 0.5]).unwrap();
        let size = message.write_all().unwrap().encode(&codec, &x.read_all().unwrap(), 0).unwrap().unwrap();
        assert_eq!(size, 8);
        let mut to = y.write_all().unwrap();
        to.decode(&codec, &message.read(0..size).unwrap(), Some(2.0)).unwrap().unwrap();
        drop(to);
        assert_eq!(*y.host::<f32>().unwrap(), [2.5, -3.5], "a kernel: {fixed}");
    }
}

#[test]
fn a_refusal_is_told_to_the_next_who_waits_and_to_nobody_else() {
    let late = Late::new(0);
    let x = Buffer::from_slice_on(&late.queue(), &[1.0f32, f32::NAN]).unwrap();
    let message = Buffer::zeroed_on(&late.queue(), DType::U8, 8).unwrap();
    let encode =
        |codec: &Whole| message.write_all().unwrap().encode(codec, &x.read_all().unwrap(), 0).unwrap();
    let at_once = encode(&Whole { fixed: false });
    assert!(matches!(at_once, Err(CodecError::NotFinite { index: 1, .. })), "its size had to be known");
    assert_eq!(encode(&Whole { fixed: true }).unwrap(), 8);
    x.queue().check().unwrap();
    let refusal = message.queue().check().unwrap_err().to_string();
    assert!(refusal.contains("whole on late:") && refusal.contains("element 1 is NaN"), "{refusal}");
    message.queue().check().unwrap();
    encode(&Whole { fixed: true }).unwrap();
    assert!(message.host::<u8>().is_err());
    assert!(message.host::<u8>().is_ok());
}

/// Enqueues a message that a codec will refuse, and returns it.
fn refused(late: &Late, queue: &Queue) -> Buffer {
    let x = Buffer::from_slice_on(&late.queue(), &[f32::NAN]).unwrap();
    let message = Buffer::zeroed_on(queue, DType::U8, 4).unwrap();
    message.write_all().unwrap().encode(&Whole { fixed: true }, &x.read_all().unwrap(), 0).unwrap().unwrap();
    message
}

/// Checks that the failure of `message`, which the first queue writes, reaches each queue that copies its bytes.
pub(crate) fn follow(message: &Buffer, queues: &[Queue; 3], said: &str) {
    let copies = [1, 2].map(|at| Buffer::zeroed_on(&queues[at], DType::U8, message.len()).unwrap());
    copies[0].write_all().unwrap().copy_from(&message.read_all().unwrap()).unwrap();
    copies[1].write_all().unwrap().copy_from(&copies[0].read_all().unwrap()).unwrap();
    // The first queue's report changes nothing for work enqueued before.
    for queue in queues {
        let error = queue.check().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        queue.check().unwrap();
    }
    // Other bytes are no longer wrong.
    message.write_all().unwrap().clear();
    copies[1].write_all().unwrap().copy_from(&message.read_all().unwrap()).unwrap();
    copies.iter().for_each(|copy| copy.queue().check().unwrap());
}

#[test]
fn a_failure_goes_wherever_the_bytes_go() {
    for seed in 0..3 {
        let late = Late::new(seed);
        let queues = [(); 3].map(|()| late.queue());
        follow(&refused(&late, &queues[0]), &queues, "element 0 is NaN");
    }
}

#[test]
fn a_failure_goes_nowhere_else() {
    let late = Late::new(0);
    let own = late.queue();
    let other = late.queue();
    let read = Buffer::zeroed_on(&other, DType::U8, 4).unwrap();
    let _message = refused(&late, &own);
    let copy = Buffer::zeroed_on(&own, DType::U8, 4).unwrap();
    copy.write_all().unwrap().copy_from(&read.read_all().unwrap()).unwrap();
    // Waits until the failed queue has read it.
    read.write_all().unwrap().clear();
    other.check().unwrap();
    assert!(own.check().is_err());
}

#[test]
fn a_failure_ends_with_its_queue() {
    let late = Late::new(0);
    let x = Buffer::from_slice_on(&late.queue(), &[f32::NAN]).unwrap();
    let message = Buffer::zeroed_on(&late.queue(), DType::U8, 4).unwrap();
    message.write_all().unwrap().encode(&Whole { fixed: true }, &x.read_all().unwrap(), 0).unwrap().unwrap();
    let event = message.queue().device().unwrap().record();
    drop((x, message));
    assert!(event.wait(Duration::from_secs(60)));
    for queue in [late.queue(), late.queue(), late.queue()] {
        queue.check().unwrap();
    }
}

#[test]
fn an_event_happens_although_nobody_has_its_device_any_more() {
    for seed in 0..10 {
        let late = Late::new(seed);
        let x = Buffer::from_slice_on(&late.queue(), &[1.0f32]).unwrap();
        x.write_all().unwrap().scale(2.0).unwrap();
        let event = x.queue().device().unwrap().record();
        drop((x, late));
        assert!(event.wait(Duration::from_secs(60)), "seed {seed}");
    }
}

#[test]
fn a_damaged_message_is_a_failure() {
    let late = Late::new(0);
    let message = Buffer::zeroed_on(&late.queue(), DType::U8, 7).unwrap();
    let y = Buffer::zeroed_on(&late.queue(), DType::F32, 2).unwrap();
    let mut to = y.write_all().unwrap();
    to.decode(&Whole { fixed: true }, &message.read_all().unwrap(), None).unwrap().unwrap();
    let error = y.queue().check().unwrap_err().to_string();
    assert!(error.contains("too long or too short") && !error.contains("diverges"), "{error}");
}

/// Owner of another library's memory; its drop reports the thread.
struct Owner(Sender<ThreadId>);

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::current().id());
    }
}

/// Returns elements over memory of another library, and the channel on which its owner reports its drop.
pub(crate) fn foreign(late: &Late, queue: &Queue, len: usize) -> (Buffer, Receiver<ThreadId>) {
    let (sender, receiver) = channel();
    let tensor = late.foreign(4 * len, Arc::new(Owner(sender)));
    // SAFETY: zeroed elements that nothing else accesses.
    let x = unsafe { Buffer::over_foreign(queue, tensor.address, DType::F32, len, tensor.keeper) };
    (x.unwrap(), receiver)
}

#[test]
fn memory_of_another_library_goes_with_whoever_uses_it_last() {
    let late = Late::new(0);
    let own = late.queue();
    let here = std::thread::current().id();
    // Without work in flight: immediately, on this thread.
    let (x, owner) = foreign(&late, &own, 4);
    let view = x.read_all().unwrap();
    drop(x);
    assert!(owner.try_recv().is_err(), "a view is left");
    drop(view);
    assert_eq!(owner.try_recv(), Ok(here));
    // Work of another queue reads it: after that work, on the device's thread, before a later event.
    let (x, owner) = foreign(&late, &own, 4);
    let y = Buffer::zeroed_on(&late.queue(), DType::F32, 4).unwrap();
    y.write_all().unwrap().copy_from(&x.read_all().unwrap()).unwrap();
    drop(x);
    own.check().unwrap();
    assert!(owner.try_recv().is_err(), "the other queue has still to read it");
    y.queue().check().unwrap();
    assert!(owner.try_recv().is_ok_and(|there| there != here));
}

#[test]
fn memory_of_another_library_is_kept_as_long_as_its_work() {
    let late = Late::new(0);
    let queue = late.queue();
    let (x, owner) = foreign(&late, &queue, 4);
    x.write_all()
        .unwrap()
        .reduce(ReduceOp::Sum, &Buffer::from_slice(&[1.0f32; 4]).unwrap().read_all().unwrap())
        .unwrap();
    let y = Buffer::zeroed_on(&late.queue(), DType::F32, 4).unwrap();
    y.write_all().unwrap().copy_from(&x.read_all().unwrap()).unwrap();
    drop(x);
    assert!(owner.try_recv().is_err());
    assert_eq!(*y.host::<f32>().unwrap(), [1.0; 4]);
    drop((late, queue, y));
    assert!(owner.try_recv().is_ok(), "it is no longer needed");
}

#[test]
fn bytes_go_to_and_fro_wherever_the_elements_are() {
    let late = Late::new(0);
    for queue in [Queue::host(), late.queue()] {
        let buffer = Buffer::zeroed_on(&queue, DType::I32, 3).unwrap();
        buffer.write(1..3).unwrap().copy_from_bytes(&[1, 0, 0, 0, 2, 0, 0, 0]).unwrap();
        assert_eq!(*buffer.host::<i32>().unwrap(), [0, 1, 2]);
        assert_eq!(*buffer.read(1..2).unwrap().bytes_on_host().unwrap(), [1, 0, 0, 0]);
        let short = buffer.write_all().unwrap().copy_from_bytes(&[0; 8]);
        assert!(matches!(short, Err(Error::Usage { .. })), "{short:?}");
    }
}
