//! Compiling a kernel file with NVRTC, which needs no GPU.

use std::ffi::{CStr, CString};
use std::ptr;

use cudarc::nvrtc::sys;

use crate::jit::sources::{Source, headers};
use crate::runtime::arch::Arch;
use crate::runtime::libraries::Folders;

/// NVRTC, found and loaded.
#[derive(Clone, Debug)]
pub(crate) struct Nvrtc {
    /// "13.0".
    pub(crate) version: String,
}

/// What every compilation gets beside the architecture.
pub(crate) const OPTIONS: &[&str] = &["--std=c++17", "--generate-line-info"];

impl Nvrtc {
    pub(crate) fn load(folders: &Folders) -> Result<Self, String> {
        folders.open_nvrtc()?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is present, and the pointers are to two integers.
        check(unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) })?;
        Ok(Self { version: format!("{major}.{minor}") })
    }

    /// Fails with the highest architecture that this NVRTC knows.
    pub(crate) fn check_knows(&self, arch: Arch) -> Result<(), String> {
        let mut count = 0;
        // SAFETY: the pointer is to an integer.
        check(unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) })?;
        let mut known = vec![0; count as usize];
        // SAFETY: there is room for `count` numbers.
        check(unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) })?;
        if known.contains(&(arch.number() as i32)) {
            return Ok(());
        }
        let (version, highest) = (&self.version, known.iter().max().copied().unwrap_or(0));
        Err(format!("NVRTC {version} knows no {arch} (up to sm_{highest}); another CUDA version does"))
    }

    /// Machine code of a file (CUBIN), or what the compiler says.
    pub(crate) fn compile(&self, source: Source, arch: Arch) -> Result<Vec<u8>, String> {
        let text = |text: &str| CString::new(text).map_err(|_| format!("{} holds a NUL", source.name));
        let (name, code) = (text(&format!("{}.cu", source.name))?, text(source.text)?);
        let names: Vec<CString> = headers().map(|(name, _)| text(name)).collect::<Result<_, _>>()?;
        let headers: Vec<CString> = headers().map(|(_, header)| text(header)).collect::<Result<_, _>>()?;
        let options = OPTIONS.iter().map(|option| (*option).to_owned()).chain([format!("--gpu-architecture={arch}")]);
        let options = options.chain(source.special.map(|special| special.options()).unwrap_or_default());
        let options: Vec<CString> = options.map(|option| text(&option)).collect::<Result<_, _>>()?;
        let pointers = |list: &[CString]| -> Vec<_> { list.iter().map(|text| text.as_ptr()).collect() };
        let (headers, names, options) = (pointers(&headers), pointers(&names), pointers(&options));
        let mut program = Program(ptr::null_mut());
        // SAFETY: all pointers are to C strings that live until the end of this function.
        check(unsafe {
            let count = headers.len() as i32;
            let (code, name, headers, names) = (code.as_ptr(), name.as_ptr(), headers.as_ptr(), names.as_ptr());
            sys::nvrtcCreateProgram(&raw mut program.0, code, name, count, headers, names)
        })?;
        // SAFETY: the program was made above, and the options live as long as the call.
        let done = check(unsafe { sys::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()) });
        done.map_err(|error| format!("{}.cu for {arch}: {error}\n{}", source.name, program.log()))?;
        program.cubin()
    }
}

struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program is alive; the pointer is to a size.
        if unsafe { sys::nvrtcGetProgramLogSize(self.0, &raw mut size) } != sys::nvrtcResult::NVRTC_SUCCESS {
            return String::new();
        }
        let mut log = vec![0_u8; size];
        // SAFETY: the log has `size` bytes, its NUL included.
        let got = unsafe { sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()) };
        let text = String::from_utf8_lossy(&log);
        if got == sys::nvrtcResult::NVRTC_SUCCESS { text.trim_end_matches('\0').to_owned() } else { String::new() }
    }

    fn cubin(&self) -> Result<Vec<u8>, String> {
        let mut size = 0;
        // SAFETY: the program is alive and compiled; the pointer is to a size.
        check(unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut size) })?;
        let mut cubin = vec![0_u8; size];
        // SAFETY: there is room for `size` bytes.
        check(unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the program was made by NVRTC and is not used again.
            unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
        }
    }
}

fn check(result: sys::nvrtcResult) -> Result<(), String> {
    if result == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: the result is a C string of the library's own.
    let text = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    Err(format!("NVRTC: {}", text.to_string_lossy()))
}
