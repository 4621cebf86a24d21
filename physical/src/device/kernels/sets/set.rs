//! Operations that each instruction set provides.

use crate::device::kernels::LANES;

/// An instruction set, with the operations that kernels do differently on each. The compiler does the rest.
///
/// A value is the proof that the machine has the instructions, so that methods are safe to call.
pub trait Set: Copy {
    /// Rounds each to f16, to the nearest, ties to even; NaNs stay NaN, with the upper bits of their payload.
    fn f16_of(self, x: [f32; LANES]) -> [u16; LANES];

    /// Converts each f16 to f32, exactly.
    fn f32_of(self, x: [u16; LANES]) -> [f32; LANES];

    /// Loads 16 numbers that another process may write at the same time, like relaxed atomic loads, by instructions
    /// that are opaque to the compiler.
    ///
    /// # Safety
    /// The numbers are mapped and aligned.
    unsafe fn load_shared(self, from: *const f32) -> [f32; LANES];

    /// Returns a mask whose bit i is set if xᵢ < 0.
    fn negative(self, x: [f32; LANES]) -> u16;

    /// Returns `size` in all lanes, negated for set bits.
    fn signed(self, size: f32, bits: u16) -> [f32; LANES];

    /// Writes `first + i` to `to` for every xᵢ with a magnitude of at least `least`, in order. The rest of `to` is undefined.
    /// Returns the number of indices that it has written.
    fn reaching(self, least: u32, x: &[f32; LANES], first: u32, to: &mut [u32; LANES]) -> usize;
}
