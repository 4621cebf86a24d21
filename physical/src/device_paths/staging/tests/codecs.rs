//! Codecs for tests of staging: one that refuses, and one that takes its time.

use crate::device::codec::{Codec, CodecError, Noise, Properties};
use std::sync::{Arc, Barrier};

/// Refuses everything.
#[derive(Debug)]
pub(super) struct Refusing;

impl Codec for Refusing {
    fn name(&self) -> String {
        "refusing".to_owned()
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: true, contraction: Some(1.0), linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        len
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(Refusing))
    }

    fn encode(&self, from: &[f32], _: &mut [u8], _: u64) -> Result<usize, CodecError> {
        Err(CodecError::NotFinite { index: 3, value: from[3] })
    }

    fn decode_add(&self, _: &[u8], _: f32, _: &mut [f32]) -> Result<(), CodecError> {
        Ok(())
    }
}

/// Makes empty messages, once the other side of a barrier has arrived.
#[derive(Debug)]
pub(super) struct Waiting(pub(super) Arc<Barrier>);

impl Codec for Waiting {
    fn name(&self) -> String {
        "waiting".to_owned()
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: true, contraction: None, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, _: usize) -> usize {
        0
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(Waiting(Arc::clone(&self.0))))
    }

    fn encode(&self, _: &[f32], _: &mut [u8], _: u64) -> Result<usize, CodecError> {
        self.0.wait();
        Ok(0)
    }

    fn decode_add(&self, _: &[u8], _: f32, _: &mut [f32]) -> Result<(), CodecError> {
        Ok(())
    }
}
