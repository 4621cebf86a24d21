//! The catalogues that options are read with by default: those of the built-in codecs and graphs. Options know neither.

use crate::spelling::Catalogues;

impl Default for Catalogues {
    fn default() -> Self {
        Catalogues::empty().with(crate::codec::catalogue()).with(crate::decentralized::catalogue())
    }
}
