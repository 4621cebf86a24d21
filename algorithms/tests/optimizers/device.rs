//! Steps on the device under test have the bits of the host's: every optimizer, tensors and sections of many lengths,
//! several steps, and numbers that are none.

use super::{cases, draw};
use hexagram_algorithms::logical::testing::{buffer, queue};
use hexagram_algorithms::logical::{Buffer, Element, Queue, Result};
use hexagram_algorithms::optimizer::{Section, Update};
use hexagram_algorithms::{Optimizer, Tensor};
use std::ops::Range;

/// Shapes of the tensors, of which the largest has more elements than a block of a sum.
const TENSORS: [&[usize]; 7] = [&[3, 7], &[], &[65], &[0, 4], &[16, 20], &[33, 131], &[5]];
/// Tensors of each section.
const SECTIONS: [Range<usize>; 3] = [0..2, 2..6, 6..7];
const STEPS: u64 = 3;

fn tensors() -> Vec<Tensor> {
    let mut start = 0;
    let tensor = |(index, shape): (usize, &&[usize])| {
        let elements = start..start + shape.iter().product::<usize>();
        start = elements.end;
        Tensor { name: format!("p{index}").into(), shape: shape.to_vec(), elements }
    };
    TENSORS.iter().enumerate().map(tensor).collect()
}

fn sections(tensors: &[Tensor]) -> Vec<Section> {
    let section = |(index, range): (usize, &Range<usize>)| Section {
        elements: tensors[range.start].elements.start..tensors[range.end - 1].elements.end,
        tensors: range.clone(),
        learning_rate: 1.0 / (index + 1) as f64,
        weight_decay: index as f64 * 0.5,
    };
    SECTIONS.iter().enumerate().map(section).collect()
}

/// Returns the gradient of a step: in the last one, every fortieth element of the first half is none that is finite.
fn gradient<T: Element + From<f32>>(step: u64, len: usize) -> Vec<T> {
    let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0];
    let element = |at: usize| match at % 40 {
        7 if step + 1 == STEPS && at < len / 2 => odd[at / 40 % odd.len()],
        _ => draw(step, 1, at),
    };
    (0..len).map(|at| T::from(element(at))).collect()
}

/// Makes steps on buffers of one queue, with gradients of another one, and returns the bytes of parameters and slots.
fn stepped<T: Element + From<f32>>(
    optimizer: &dyn Optimizer,
    [own, other]: [&Queue; 2],
) -> Result<Vec<Vec<u8>>> {
    let tensors = tensors();
    let sections = sections(&tensors);
    let len = tensors[tensors.len() - 1].elements.end;
    let initial: Vec<T> = (0..len).map(|at| T::from(draw(99, 0, at))).collect();
    let mut parameters = Buffer::from_slice_on(own, &initial)?;
    let slot_len = |slot: &str| tensors.iter().map(|tensor| optimizer.slot_len(slot, tensor)).sum();
    let slots = optimizer.slots().iter().map(|slot| parameters.beside(T::DTYPE, slot_len(slot)));
    let mut slots = slots.collect::<Result<Vec<_>>>()?;
    for step in 0..STEPS {
        optimizer.step(Update {
            step,
            learning_rate: 0.02,
            tensors: &tensors,
            sections: &sections,
            gradients: &Buffer::from_slice_on(other, &gradient::<T>(step, len))?,
            parameters: &mut parameters,
            slots: &mut slots,
        })?;
    }
    let bytes = |buffer: &Buffer| Ok(buffer.read_all()?.bytes_on_host()?.into_owned());
    std::iter::once(&parameters).chain(&slots).map(bytes).collect()
}

fn assert_alike<T: Element + From<f32>>(name: &str, optimizer: &dyn Optimizer) {
    let host = Queue::host();
    let expected = stepped::<T>(optimizer, [&host, &host]).unwrap();
    let found = stepped::<T>(optimizer, [&queue(), &queue()]).unwrap();
    for (run, (expected, found)) in expected.iter().zip(&found).enumerate() {
        let size = size_of::<T>();
        let differing = expected.chunks(size).zip(found.chunks(size)).position(|(x, y)| x != y);
        assert_eq!(differing, None, "{name}, {}, element of run {run}", T::DTYPE);
    }
}

#[test]
fn the_device_under_test_has_the_bits_of_the_host() {
    for (name, _, optimizer) in cases() {
        assert_alike::<f32>(name, &*optimizer);
        assert_alike::<f64>(name, &*optimizer);
    }
}

#[test]
fn buffers_that_do_not_fit_each_other_are_refused() {
    let optimizer = hexagram_algorithms::Adam::default();
    let refusal = |gradients: &Buffer, slots: usize, section: Section| {
        let mut slots: Vec<Buffer> = (0..slots).map(|_| buffer(&[0.0f32; 4])).collect();
        let mut parameters = buffer(&[0.0f32; 4]);
        let update = Update {
            step: 0,
            learning_rate: 1.0,
            tensors: &[],
            sections: &[section],
            gradients,
            parameters: &mut parameters,
            slots: &mut slots,
        };
        optimizer.step(update).unwrap_err().to_string()
    };
    let four = buffer(&[0.0f32; 4]);
    let longer = refusal(&buffer(&[0.0f32; 5]), 2, Section::whole(4));
    assert!(longer.contains("4 × f32 were given with 5 × f32"), "{longer}");
    let other = refusal(&buffer(&[0.0f64; 4]), 2, Section::whole(4));
    assert!(other.contains("f64"), "{other}");
    let beyond = refusal(&four, 2, Section::whole(5));
    assert!(beyond.contains("elements 0 to 5 were given of 4"), "{beyond}");
    let slots = refusal(&four, 1, Section::whole(4));
    assert!(slots.contains("2 slots was given 1"), "{slots}");
}
