//! What lies between a tensor's end and the next multiple of 4096.

use kvshare::rows::PADDING_PATTERN;

/// What the padding behind a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// There is none: the tensor ends where the next may start.
    None,
    /// Zeros: no pattern was filled in, so a write of zeros would not show.
    Zeros,
    /// The whole pattern.
    Intact,
    /// Something else: somebody wrote past the tensor.
    Damaged {
        /// How many bytes lie between the tensor's end and the first byte that is wrong.
        offset: u64,
    },
}

impl Padding {
    /// Judges the bytes up to a multiple of 4096.
    pub(super) fn of(bytes: &[u8]) -> Self {
        // The pattern repeats every 8 bytes and ends at a multiple of 4096, so it is compared from its end.
        let pattern = PADDING_PATTERN.iter().rev().cycle();
        let right = bytes.iter().rev().zip(pattern.clone()).filter(|(found, filled)| found == filled).count();
        if bytes.is_empty() {
            Self::None
        } else if bytes.iter().all(|byte| *byte == 0) {
            Self::Zeros
        } else if right == bytes.len() {
            Self::Intact
        } else {
            // Where most of the pattern is there, the first byte that is not; else the first that is not 0.
            let is_filled = 2 * right > bytes.len();
            let phase = PADDING_PATTERN.len() - bytes.len() % PADDING_PATTERN.len();
            let pattern = PADDING_PATTERN.iter().cycle().skip(phase % PADDING_PATTERN.len());
            let first = bytes.iter().zip(pattern).position(|(found, filled)| match is_filled {
                true => found != filled,
                false => *found != 0,
            });
            Self::Damaged { offset: first.unwrap_or(0) as u64 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last `length` bytes of a page of the pattern.
    fn pattern(length: usize) -> Vec<u8> {
        let page: Vec<u8> = PADDING_PATTERN.iter().copied().cycle().take(4096).collect();
        page[4096 - length..].to_vec()
    }

    #[test]
    fn padding_is_judged_by_its_bytes() {
        let with = |mut bytes: Vec<u8>, offset: usize, byte| {
            bytes[offset] = byte;
            bytes
        };
        let cases = [
            (vec![], Padding::None),
            (vec![0; 11], Padding::Zeros),
            (pattern(4095), Padding::Intact),
            (pattern(3), Padding::Intact),
            (with(pattern(1001), 0, 1), Padding::Damaged { offset: 0 }),
            (with(pattern(1001), 1000, 0), Padding::Damaged { offset: 1000 }),
            (with(vec![0; 100], 40, 7), Padding::Damaged { offset: 40 }),
        ];
        for (bytes, padding) in cases {
            assert_eq!(Padding::of(&bytes), padding, "{} bytes", bytes.len());
        }
    }
}
