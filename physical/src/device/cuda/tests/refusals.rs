//! A kernel's refusal reaches the next thread that waits, follows the bytes, and goes nowhere else.

use super::{Cuda, gpu};
use crate::device::apply;
use crate::device::codec::{Codec, CodecError, Noise, Properties};
use crate::device::operations::program::{Argument, Code, Launch, Module, Program};
use crate::device::{Kernel, Operands, Queue};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use crate::testing::late::tests::follow;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

static WHOLE: Module = Module { name: "whole", code: Code::Packed(hexagram_ptx::WHOLE) };

/// The same from source, which is compiled when it is used.
static WHOLE_SOURCE: Module = Module { name: "whole", code: Code::Cuda(include_str!("whole.cu")) };

/// Keeps every number, and refuses NaN.
#[derive(Debug)]
struct Whole(&'static Module);

const PTX: Whole = Whole(&WHOLE);

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
        true
    }

    fn encode(&self, _: &[f32], _: &mut [u8], _: u64) -> Result<usize, CodecError> {
        Err(CodecError::damaged("the host was asked"))
    }

    fn decode_add(&self, _: &[u8], _: f32, _: &mut [f32]) -> Result<(), CodecError> {
        Err(CodecError::damaged("the host was asked"))
    }

    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        let arguments =
            vec![Argument::Operand(0), Argument::U64(len as u64), Argument::Operand(1), Argument::Refusing];
        Some(Program::of(self.0, Launch { entry: "whole_encode", blocks: 2, threads: 64, arguments }))
    }

    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        let weight = Argument::F32(weight?);
        let arguments = vec![
            Argument::Operand(0),
            Argument::U64(len as u64),
            weight,
            Argument::Operand(1),
            Argument::Refusing,
        ];
        let launch = Launch { entry: "whole_decode", blocks: 2, threads: 64, arguments };
        Some(Program { damage: "it begins with 255", ..Program::of(self.0, launch) })
    }
}

/// Returns a queue that has refused a number, and has reported it.
pub(super) fn forgiven(gpu: &Cuda) -> Queue {
    let queue = gpu.queue().unwrap();
    let x = Buffer::from_slice_on(&queue, &[1.0f32, f32::NAN]).unwrap();
    let message = Buffer::zeroed_on(&queue, DType::U8, 8).unwrap();
    assert!(message.write_all().unwrap().encode(&PTX, &x.read_all().unwrap(), 0).unwrap().is_ok());
    assert!(queue.refusal().unwrap().is_some());
    queue
}

/// Lets a queue that has no record yet refuse a number, after `before`.
pub(super) fn is_refused(queue: &Queue, before: impl FnOnce()) {
    let x = Buffer::from_slice_on(queue, &[1.0f32, f32::NAN]).unwrap();
    let message = Buffer::zeroed_on(queue, DType::U8, 8).unwrap();
    queue.check().unwrap();
    before();
    assert!(message.write_all().unwrap().encode(&PTX, &x.read_all().unwrap(), 0).unwrap().is_ok());
    assert!(queue.refusal().unwrap().is_some());
}

/// Enqueues the encoding of `x`, from its second element on, and returns the message.
fn encoded(codec: &Whole, x: &Buffer, queue: &Queue) -> Buffer {
    let len = x.len() - 1;
    let message = Buffer::zeroed_on(queue, DType::U8, 4 * len).unwrap();
    let size = message.write_all().unwrap().encode(codec, &x.read(1..len + 1).unwrap(), 0).unwrap();
    assert_eq!(size.unwrap(), 4 * len);
    message
}

/// Enqueues a message that the codec will refuse, and returns it.
fn refused(from: &Queue, queue: &Queue) -> Buffer {
    let x = Buffer::from_slice_on(from, &[0.0, f32::NAN, 1.0, f32::NAN]).unwrap();
    encoded(&PTX, &x, queue)
}

#[test]
fn a_message_comes_back_from_ptx_and_from_source() {
    let Some(gpu) = gpu() else { return };
    for module in [&WHOLE, &WHOLE_SOURCE] {
        let codec = Whole(module);
        let x: Vec<f32> = (0..1001).map(|at| at as f32 * 0.5 - 3.0).collect();
        let x = Buffer::from_slice_on(&gpu.queue().unwrap(), &x).unwrap();
        let message = encoded(&codec, &x, &gpu.queue().unwrap());
        let y = Buffer::zeroed_on(&gpu.queue().unwrap(), DType::F32, 1000).unwrap();
        let decoded = y.write_all().unwrap().decode(&codec, &message.read_all().unwrap(), Some(2.0)).unwrap();
        decoded.unwrap();
        let error = y.queue().check().err().map(|error| error.to_string()).unwrap_or_default();
        if error.contains("libnvrtc") {
            assert!(error.contains("whole is CUDA C++, but libnvrtc.so.12 cannot be loaded"), "{error}");
            let _ = writeln!(std::io::stderr(), "skipped: no NVRTC: {error}");
            continue;
        }
        assert_eq!(error, "");
        let want: Vec<f32> = (1..1001).map(|at| at as f32 - 6.0).collect();
        assert_eq!(*y.host::<f32>().unwrap(), *want, "{:?}", module.code);
    }
}

#[test]
fn a_refusal_is_told_to_the_next_who_waits_and_to_nobody_else() {
    let Some(gpu) = gpu() else { return };
    let x = gpu.queue().unwrap();
    let message = refused(&x, &gpu.queue().unwrap());
    x.check().unwrap();
    let error = message.queue().check().unwrap_err().to_string();
    assert!(error.contains("whole on cuda:0: element 1 is NaN"), "{error}");
    message.queue().check().unwrap();
    assert!(message.host::<u8>().is_ok());
    // The next one is reported as well, and a query for refusals finds it.
    let message = refused(&x, &message.queue());
    let refusal = message.queue().refusal().unwrap();
    assert!(matches!(refusal, Some(CodecError::NotFinite { index: 1, .. })), "{refusal:?}");
    assert_eq!(message.queue().refusal().unwrap(), None);
    let message = refused(&x, &message.queue());
    assert!(message.host::<u8>().is_err());
    assert!(message.host::<u8>().is_ok());
}

#[test]
fn the_first_refusal_stays() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    let later = Buffer::from_slice_on(&queue, &[0.0, 1.0, 2.0, f32::NAN]).unwrap();
    let first = encoded(&PTX, &later, &queue);
    let second = refused(&queue, &queue);
    let error = queue.check().unwrap_err().to_string();
    assert!(error.contains("element 3 is NaN"), "{error}");
    drop((first, second));
    queue.check().unwrap();
}

#[test]
fn a_refusal_goes_wherever_the_bytes_go() {
    let Some(gpu) = gpu() else { return };
    for _ in 0..3 {
        let queues = [(); 3].map(|()| gpu.queue().unwrap());
        follow(&refused(&gpu.queue().unwrap(), &queues[0]), &queues, "element 1 is NaN");
    }
}

#[test]
fn a_refusal_that_is_known_goes_on_as_well() {
    let Some(gpu) = gpu() else { return };
    let [own, other] = [(); 2].map(|()| gpu.queue().unwrap());
    let message = refused(&own, &own);
    let event = own.device().unwrap().record();
    assert!(event.wait(Duration::from_secs(60)));
    assert!(event.failure().is_some());
    let copy = Buffer::zeroed_on(&other, DType::U8, 12).unwrap();
    copy.write_all().unwrap().copy_from(&message.read_all().unwrap()).unwrap();
    assert!(other.check().is_err());
    other.check().unwrap();
    assert!(own.check().is_err());
    own.check().unwrap();
    let event = own.device().unwrap().record();
    assert!(event.wait(Duration::from_secs(60)));
    assert!(event.failure().is_none());
}

#[test]
fn a_refusal_goes_nowhere_else() {
    let Some(gpu) = gpu() else { return };
    let [own, other] = [(); 2].map(|()| gpu.queue().unwrap());
    let read = Buffer::zeroed_on(&other, DType::U8, 4).unwrap();
    let _message = refused(&gpu.queue().unwrap(), &own);
    let copy = Buffer::zeroed_on(&own, DType::U8, 4).unwrap();
    copy.write_all().unwrap().copy_from(&read.read_all().unwrap()).unwrap();
    // Waits until the failed queue has read it.
    read.write_all().unwrap().clear();
    other.check().unwrap();
    assert!(own.check().is_err());
}

#[test]
fn a_damaged_message_is_a_failure() {
    let Some(gpu) = gpu() else { return };
    let message = Buffer::from_slice_on(&gpu.queue().unwrap(), &[255u8; 8]).unwrap();
    let y = Buffer::zeroed_on(&gpu.queue().unwrap(), DType::F32, 2).unwrap();
    let mut to = y.write_all().unwrap();
    to.decode(&PTX, &message.read_all().unwrap(), Some(1.0)).unwrap().unwrap();
    drop(to);
    let error = y.queue().check().unwrap_err().to_string();
    assert!(error.contains("it begins with 255") && !error.contains("diverges"), "{error}");
}

/// Takes other arguments than its entry has parameters.
#[derive(Debug)]
struct Mistaken(Vec<Argument>);

impl Kernel for Mistaken {
    fn run(&self, _: Operands<'_>) -> Result<()> {
        Err(Error::usage("the host was asked", "ask the device"))
    }

    fn program(&self) -> Option<Program> {
        let arguments = self.0.clone();
        Some(Program::of(&WHOLE, Launch { entry: "whole_encode", blocks: 1, threads: 32, arguments }))
    }
}

#[test]
fn a_launch_with_other_arguments_than_its_entry_has_parameters_is_refused() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    let x = Buffer::zeroed_on(&queue, DType::F32, 4).unwrap();
    let length = Argument::U64(4);
    for arguments in [
        vec![],
        vec![Argument::Operand(0), length, Argument::Operand(0)],
        vec![Argument::Operand(0), length, Argument::Operand(0), length],
        vec![Argument::Operand(0), Argument::U32(4), Argument::Operand(0), Argument::Refusing],
    ] {
        apply(Arc::new(Mistaken(arguments)), [], [x.write_all().unwrap()]).unwrap();
        let error = queue.check().unwrap_err().to_string();
        assert!(error.contains("does not accept the arguments"), "{error}");
    }
    queue.check().unwrap();
}
