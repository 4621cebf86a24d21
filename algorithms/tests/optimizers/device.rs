//! Steps on the device under test have the bits of the host: every optimizer, tensors and sections of many lengths,
//! several steps, and values that are not finite.

use super::{cases, draw};
use hexagram_algorithms::logical::testing::{buffer, queue};
use hexagram_algorithms::logical::{Buffer, DType, Element, Queue, Result};
use hexagram_algorithms::optimizer::{Muon, MuonScale, Section, Update};
use hexagram_algorithms::{Adam, Optimizer, Tensor};
use std::ops::Range;

/// Tensors of one bucket.
struct Bucket {
    shapes: &'static [&'static [usize]],
    /// Tensors of each section.
    sections: &'static [Range<usize>],
    /// Tensor whose gradient is always 0.
    still: Option<usize>,
}

/// Tensors for every optimizer; the largest has more elements than a block of a sum.
const MIXED: Bucket = Bucket {
    shapes: &[&[3, 7], &[], &[65], &[0, 4], &[16, 20], &[33, 131], &[5]],
    sections: &[0..2, 2..6, 6..7],
    still: None,
};
/// Tall, wide, square and flat matrices among other tensors. Their sides end at, before and after the edge of a tile of
/// a product; the norm of some consists of several sums. The still one is divided by the smallest norm.
const MATRICES: Bucket = Bucket {
    shapes: &[
        &[131, 67],
        &[65],
        &[3, 1500],
        &[64, 64],
        &[],
        &[4, 3, 2, 2],
        &[1, 200],
        &[5, 9],
        &[200, 1],
        &[33],
        &[15, 16],
        &[129, 65],
        &[63, 130],
    ],
    sections: &[0..1, 1..4, 4..8, 8..13],
    still: Some(7),
};
const ONLY_MATRICES: Bucket = Bucket { shapes: &[&[17, 33], &[9, 4]], sections: &[0..1, 1..2], still: None };
const NO_MATRIX: Bucket = Bucket { shapes: &[&[17], &[]], sections: &[0..1, 1..2], still: None };
const STEPS: u64 = 3;

impl Bucket {
    fn tensors(&self) -> Vec<Tensor> {
        let mut start = 0;
        let tensor = |(index, shape): (usize, &&[usize])| {
            let elements = start..start + shape.iter().product::<usize>();
            start = elements.end;
            Tensor { name: format!("p{index}").into(), shape: shape.to_vec(), elements }
        };
        self.shapes.iter().enumerate().map(tensor).collect()
    }

    fn sections(&self, tensors: &[Tensor]) -> Vec<Section> {
        let section = |(index, range): (usize, &Range<usize>)| Section {
            elements: tensors[range.start].elements.start..tensors[range.end - 1].elements.end,
            tensors: range.clone(),
            learning_rate: 1.0 / (index + 1) as f64,
            weight_decay: index as f64 * 0.5,
        };
        self.sections.iter().enumerate().map(section).collect()
    }

    /// Returns the gradient of a step: in the last one, every fortieth element of the first half is not finite.
    fn gradient<T: Element + From<f32>>(&self, step: u64, tensors: &[Tensor]) -> Vec<T> {
        let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0];
        let len = tensors[tensors.len() - 1].elements.end;
        let still = self.still.map_or(0..0, |still| tensors[still].elements.clone());
        let element = |at: usize| match at % 40 {
            _ if still.contains(&at) => 0.0,
            7 if step + 1 == STEPS && at < len / 2 => odd[at / 40 % odd.len()],
            _ => draw(step, 1, at),
        };
        (0..len).map(|at| T::from(element(at))).collect()
    }

    /// Makes steps on buffers of one queue, with gradients of another one, and returns the bytes of parameters and
    /// slots after each.
    fn stepped<T: Element + From<f32>>(
        &self,
        optimizer: &dyn Optimizer,
        [own, other]: [&Queue; 2],
    ) -> Result<Vec<Vec<u8>>> {
        let tensors = self.tensors();
        let sections = self.sections(&tensors);
        let len = tensors[tensors.len() - 1].elements.end;
        let initial: Vec<T> = (0..len).map(|at| T::from(draw(99, 0, at))).collect();
        let mut parameters = Buffer::from_slice_on(own, &initial)?;
        let slot_len = |slot: &str| tensors.iter().map(|tensor| optimizer.slot_len(slot, tensor)).sum();
        let slots =
            optimizer.slots().iter().map(|slot| parameters.zeroed_same_device(T::DTYPE, slot_len(slot)));
        let mut slots = slots.collect::<Result<Vec<_>>>()?;
        let mut found = Vec::new();
        for step in 0..STEPS {
            optimizer.step(Update {
                step,
                learning_rate: 0.02,
                tensors: &tensors,
                sections: &sections,
                gradients: &Buffer::from_slice_on(other, &self.gradient::<T>(step, &tensors))?,
                parameters: &mut parameters,
                slots: &mut slots,
            })?;
            for buffer in std::iter::once(&parameters).chain(&slots) {
                found.push(buffer.read_all()?.bytes_on_host()?.into_owned());
            }
        }
        Ok(found)
    }

    fn assert_alike<T: Element + From<f32>>(&self, name: &str, optimizer: &dyn Optimizer) {
        let host = Queue::host();
        let expected = self.stepped::<T>(optimizer, [&host, &host]).unwrap();
        let found = self.stepped::<T>(optimizer, [&queue(), &queue()]).unwrap();
        let runs = 1 + optimizer.slots().len();
        for (at, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let size = size_of::<T>();
            let differing = expected.chunks(size).zip(found.chunks(size)).position(|(x, y)| x != y);
            let step = at / runs;
            let run = at % runs;
            assert_eq!(differing, None, "{name}, {}, step {step}, element of run {run}", T::DTYPE);
        }
    }
}

#[test]
fn the_device_under_test_has_the_bits_of_the_host() {
    for (name, _, optimizer) in cases() {
        MIXED.assert_alike::<f32>(name, &*optimizer);
        MIXED.assert_alike::<f64>(name, &*optimizer);
    }
}

#[test]
fn matrices_have_the_bits_of_the_host_whatever_their_shape_and_what_is_beside_them() {
    for (rounds, nesterov, scale) in [
        (1, true, MuonScale::MatchAdamW),
        (2, false, MuonScale::MatchAdamW),
        (3, true, MuonScale::Original),
        (1, false, MuonScale::Original),
    ] {
        let except = if rounds == 2 { vec!["p2".into(), "p10".into()] } else { Vec::new() };
        let muon = Muon { rounds, nesterov, scale, except, ..Muon::default() };
        for (name, bucket) in [("many", MATRICES), ("only", ONLY_MATRICES), ("none", NO_MATRIX)] {
            bucket.assert_alike::<f32>(&format!("{name} of {muon:?}"), &muon);
            bucket.assert_alike::<f64>(&format!("{name} of {muon:?}"), &muon);
        }
    }
}

#[test]
fn a_zero_to_which_products_are_added_keeps_its_sign() {
    // The first row is −0 after the division by the norm, and so are its products with the others.
    let gradients = [-1e-40f32, -1e-40, -1e-40, -1e10, -1e10, -1e10];
    let stepped = |queue: &Queue| -> Result<Vec<u32>> {
        let mut parameters = Buffer::from_slice_on(queue, &[-0.0f32; 6])?;
        let mut slots =
            [parameters.zeroed_same_device(DType::F32, 6)?, parameters.zeroed_same_device(DType::F32, 0)?];
        Muon::default().step(Update {
            step: 0,
            learning_rate: 0.02,
            tensors: &[Tensor { name: "p".into(), shape: vec![2, 3], elements: 0..6 }],
            sections: &[Section { tensors: 0..1, ..Section::whole(6) }],
            gradients: &Buffer::from_slice_on(queue, &gradients)?,
            parameters: &mut parameters,
            slots: &mut slots,
        })?;
        Ok(parameters.host::<f32>()?.iter().map(|x| x.to_bits()).collect())
    };
    let expected = stepped(&Queue::host()).unwrap();
    // −0 − (−0) is 0, and −0 − 0 would be −0.
    assert_eq!(expected[..3], [0; 3]);
    assert_eq!(stepped(&queue()).unwrap(), expected);
}

#[test]
fn buffers_that_do_not_fit_each_other_are_refused() {
    let adam = Adam::default();
    let refusal = |optimizer: &dyn Optimizer, gradients: &Buffer, slots: &[usize], section: Section| {
        let mut slots: Vec<Buffer> = slots.iter().map(|len| buffer(&vec![0.0f32; *len])).collect();
        let mut parameters = buffer(&[0.0f32; 4]);
        let update = Update {
            step: 0,
            learning_rate: 1.0,
            tensors: &[Tensor { name: "p".into(), shape: vec![4], elements: 0..4 }],
            sections: &[section],
            gradients,
            parameters: &mut parameters,
            slots: &mut slots,
        };
        optimizer.step(update).unwrap_err().to_string()
    };
    let four = buffer(&[0.0f32; 4]);
    let longer = refusal(&adam, &buffer(&[0.0f32; 5]), &[4, 4], Section::whole(4));
    assert!(longer.contains("4 × f32 were given with 5 × f32"), "{longer}");
    let other = refusal(&adam, &buffer(&[0.0f64; 4]), &[4, 4], Section::whole(4));
    assert!(other.contains("f64"), "{other}");
    let beyond = refusal(&adam, &four, &[4, 4], Section::whole(5));
    assert!(beyond.contains("elements 0 to 5 were given of 4"), "{beyond}");
    let slots = refusal(&adam, &four, &[4], Section::whole(4));
    assert!(slots.contains("2 slots was given 1"), "{slots}");
    let whole = Section { tensors: 0..1, ..Section::whole(4) };
    let shorter = refusal(&Muon::default(), &four, &[4, 3], whole);
    assert!(shorter.contains("4 elements have a second-moment of 3"), "{shorter}");
}
