//! Numbers of every kind that codecs find hard.

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Plain,
    Mixed,
    Equal,
    Few,
    Zeros,
    Tiny,
    Denormal,
    Huge,
    Infinite,
    Nan,
    Both,
}

impl Kind {
    pub(super) const ALL: [Kind; 11] = [
        Kind::Plain,
        Kind::Mixed,
        Kind::Equal,
        Kind::Few,
        Kind::Zeros,
        Kind::Tiny,
        Kind::Denormal,
        Kind::Huge,
        Kind::Infinite,
        Kind::Nan,
        Kind::Both,
    ];
}

/// Returns numbers of a kind, the same for the same length.
pub(super) fn numbers(kind: Kind, len: usize) -> Vec<f32> {
    let mut word = 0x9e37_79b9_7f4a_7c15 ^ len as u64 ^ (kind as u64) << 32;
    let mut draw = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word >> 32) as u32
    };
    let mut number = |at: usize| {
        let bits = draw();
        let plain = (bits >> 8) as f32 / (1u32 << 23) as f32 - 1.0;
        match kind {
            Kind::Plain | Kind::Infinite | Kind::Nan | Kind::Both => plain,
            Kind::Mixed => plain * 10f32.powi(at as i32 % 70 - 35),
            Kind::Equal => 0.7f32.copysign(plain),
            Kind::Few => ((bits >> 29) as f32 * 0.25 - 0.75) * 3.0,
            Kind::Zeros => 0f32.copysign(plain),
            Kind::Tiny => plain * 1e-27,
            Kind::Denormal => plain * 1e-40,
            Kind::Huge => plain * 3.4e38,
        }
    };
    let mut numbers: Vec<f32> = (0..len).map(&mut number).collect();
    let odd: &[f32] = match kind {
        Kind::Infinite => &[f32::NEG_INFINITY],
        Kind::Nan => &[f32::NAN],
        Kind::Both => &[f32::INFINITY, -f32::NAN, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)],
        _ => &[],
    };
    for (number, odd) in odd.iter().enumerate().filter(|_| len > 0) {
        numbers[(draw() as usize / 2 + number) % len] = *odd;
    }
    numbers
}
