//! Which GPU a kernel is compiled for.

use std::fmt;
use std::str::FromStr;

/// A GPU architecture: its compute capability.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Arch {
    major: u32,
    minor: u32,
}

/// The lowest that kernels are written for (Turing).
pub const LOWEST: Arch = Arch { major: 7, minor: 5 };
/// From here on the hardware knows bf16 (Ampere).
pub(crate) const LOWEST_BF16: Arch = Arch { major: 8, minor: 0 };
/// From here on code may use instructions of this architecture alone (`sm_90a`).
const SPECIFIC_FROM: u32 = 9;

impl Arch {
    /// The architecture with this compute capability.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// As NVRTC lists it: 90.
    pub(crate) fn number(self) -> u32 {
        self.major * 10 + self.minor
    }

    /// "9.0".
    pub(crate) fn capability(self) -> String {
        format!("{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.number(), if self.major >= SPECIFIC_FROM { "a" } else { "" })
    }
}

impl FromStr for Arch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix("sm_").map(|rest| rest.strip_suffix('a').unwrap_or(rest));
        let arch = number.and_then(|number| number.parse::<u32>().ok()).map(|n| Self { major: n / 10, minor: n % 10 });
        match arch {
            Some(arch) if arch < LOWEST => Err(format!("{text:?} is too old: {LOWEST} is the lowest")),
            Some(arch) if arch.to_string() == text => Ok(arch),
            Some(arch) => Err(format!("{text:?} is no target; did you mean {arch}?")),
            None => Err(format!("{text:?} is no architecture; expected one like sm_80, sm_90a or sm_100a")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"] {
            assert_eq!(name.parse::<Arch>().unwrap().to_string(), name);
        }
        for (name, hint) in [("sm_90", "sm_90a"), ("sm_70", "too old"), ("h100", "sm_90a"), ("sm_80a", "sm_80")] {
            let error = name.parse::<Arch>().unwrap_err();
            assert!(error.contains(hint), "{error}");
        }
    }
}
