//! Loaded ELF images: what the loader tells about them, and their own headers in memory.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An image that stays loaded for `'a`.
pub(super) struct Image<'a> {
    /// The addresses of all its segments, in whole pages.
    pub(super) range: Range<usize>,
    /// AVMA minus SVMA.
    pub(super) bias: usize,
    /// The loader's name for it: empty for the executable.
    pub(super) name: &'a [u8],
    headers: &'a [libc::Elf64_Phdr],
}

/// The loader's lock-free look-up of an address, glibc 2.35 and later; 0 when there is none. Relaxed everywhere: the
/// function was there before the program started.
static FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);

type FindObject = unsafe extern "C" fn(*mut c_void, *mut FoundObject) -> c_int;

/// `struct dl_find_object` of glibc's <dlfcn.h> for x86-64.
#[repr(C)]
struct FoundObject {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *const LinkMap,
    eh_frame: *mut c_void,
    reserved: [u64; 7],
}

/// The public part of `struct link_map` of <link.h>.
#[repr(C)]
struct LinkMap {
    addr: usize,
    name: *const c_char,
}

const PAGE: usize = 4096;
/// The longest name that is read, the system's limit for a path.
const MAX_NAME: usize = 4096;
const EHDR_BYTES: usize = 64;

/// Resolves what the C library offers. Not hook-safe.
pub(super) fn prepare() {
    // SAFETY: the name is a C string; RTLD_DEFAULT needs no handle.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND_OBJECT.store(symbol as usize, Ordering::Relaxed);
}

/// The address of a function in the C library, wherever that is loaded; `None` in a static program.
pub(super) fn c_library_function() -> Option<usize> {
    // SAFETY: as in `prepare`.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"qsort".as_ptr()) };
    (!symbol.is_null()).then_some(symbol as usize)
}

/// The address of a function in the loader; `None` in a static program.
pub(super) fn loader_function() -> Option<usize> {
    match FIND_OBJECT.load(Ordering::Relaxed) {
        0 => None,
        function => Some(function),
    }
}

/// An address in the executable; `None` when the kernel does not tell.
pub(super) fn program_headers() -> Option<usize> {
    // SAFETY: getauxval has no preconditions.
    let addr = unsafe { libc::getauxval(libc::AT_PHDR) as usize };
    (addr != 0).then_some(addr)
}

/// Where the kernel's own image for user space begins; 0 when there is none. Hook-safe.
pub(super) fn vdso_start() -> usize {
    // SAFETY: getauxval has no preconditions.
    unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) as usize }
}

/// Gives the image that contains `avma` to `then`; `None` when no image does. Lock-free where the C library allows, else
/// under the loader's lock. Hook-safe.
///
/// The image must stay loaded meanwhile: a frame on a living stack executes in it, or it is never unloaded.
pub(super) fn with_image<R>(avma: usize, then: impl FnOnce(&Image<'_>) -> R) -> Option<R> {
    let function = FIND_OBJECT.load(Ordering::Relaxed);
    if function == 0 {
        return with_image_locked(avma, then);
    }
    // SAFETY: `prepare` got the address of exactly this function from the loader.
    let find = unsafe { std::mem::transmute::<usize, FindObject>(function) };
    let mut found = std::mem::MaybeUninit::<FoundObject>::uninit();
    // SAFETY: any address may be asked for, and `found` is a valid place for the result.
    if unsafe { find(avma as *mut c_void, found.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it filled the result.
    let found = unsafe { found.assume_init() };
    match image_of(&found) {
        Some(image) if image.range.contains(&avma) => Some(then(&image)),
        _ => with_image_locked(avma, then),
    }
}

/// As [`with_image`], always under the loader's lock, so that the image stays loaded whatever it is. Hook-safe; never to be
/// called with a lock of ours held.
pub(super) fn with_image_locked<R>(avma: usize, then: impl FnOnce(&Image<'_>) -> R) -> Option<R> {
    let mut then = Some(then);
    let mut result = None;
    each_image(|image, _| {
        if !image.range.contains(&avma) {
            return true;
        }
        result = then.take().map(|then| then(image));
        false
    });
    result
}

/// How many images the loader has unloaded so far; `None` when it does not tell. Takes the loader's lock. Hook-safe.
pub(super) fn n_unloaded() -> Option<u64> {
    let mut n_unloaded = None;
    each_image(|_, n_subs| {
        n_unloaded = n_subs;
        false
    });
    n_unloaded
}

impl<'a> Image<'a> {
    /// Makes the image of a header table; `None` when it has no segments or nonsensical ones.
    fn new(bias: usize, name: &'a [u8], headers: &'a [libc::Elf64_Phdr]) -> Option<Self> {
        let (mut start, mut end) = (usize::MAX, 0);
        for header in headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
        {
            let segment = segment_range(bias, header)?;
            start = start.min(segment.start & !(PAGE - 1));
            end = end.max(segment.end.checked_add(PAGE - 1)? & !(PAGE - 1));
        }
        (start < end).then_some(Self {
            range: start..end,
            bias,
            name,
            headers,
        })
    }

    /// The addresses of the `.eh_frame_hdr` section.
    pub(super) fn unwind_header(&self) -> Option<Range<usize>> {
        self.with_type(libc::PT_GNU_EH_FRAME).next()
    }

    /// The addresses of the segment that is mapped readable and contains all of `part`.
    pub(super) fn segment_of(&self, part: &Range<usize>) -> Option<Range<usize>> {
        self.headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_R != 0)
            .filter_map(|header| segment_range(self.bias, header))
            .find(|segment| segment.start <= part.start && part.end <= segment.end)
    }

    /// The bytes at `part`, if one readable segment contains them all.
    pub(super) fn bytes(&self, part: Range<usize>) -> Option<&'a [u8]> {
        self.segment_of(&part)?;
        if part.start == 0 || part.end < part.start {
            return None;
        }
        let start = part.start as *const u8;
        // SAFETY: the loader mapped the whole segment readable, and the image stays loaded for 'a.
        Some(unsafe { std::slice::from_raw_parts(start, part.end - part.start) })
    }

    /// The GNU build ID.
    pub(super) fn build_id(&self) -> Option<&'a [u8]> {
        self.with_type(libc::PT_NOTE)
            .filter_map(|range| self.bytes(range))
            .find_map(build_id_in)
    }

    fn with_type(&self, kind: u32) -> impl Iterator<Item = Range<usize>> + '_ {
        self.headers
            .iter()
            .filter(move |header| header.p_type == kind)
            .filter_map(|header| segment_range(self.bias, header))
    }
}

/// The build ID among notes: each is name size, descriptor size, type, name, descriptor, the latter two padded to 4 bytes
/// (System V ABI, "Note Section").
fn build_id_in(mut notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    let padded = |size: u32| (size as usize).checked_add(3).map(|size| size & !3);
    loop {
        let (header, rest) = notes.split_first_chunk::<12>()?;
        let word = |at: usize| {
            let bytes = header.get(at..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let (name_size, size, kind) = (word(0)?, word(4)?, word(8)?);
        let name = rest.get(..name_size as usize)?;
        let rest = rest.get(padded(name_size)?..)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return rest.get(..size as usize);
        }
        notes = rest.get(padded(size)?..)?;
    }
}

fn segment_range(bias: usize, header: &libc::Elf64_Phdr) -> Option<Range<usize>> {
    let start = bias.wrapping_add(usize::try_from(header.p_vaddr).ok()?);
    let end = start.checked_add(usize::try_from(header.p_memsz).ok()?)?;
    Some(start..end)
}

/// The image that the lock-free look-up found, by the ELF header that its first page usually begins with.
fn image_of<'a>(found: &FoundObject) -> Option<Image<'a>> {
    let start = found.map_start as usize;
    if start == 0 || start % PAGE != 0 || found.link_map.is_null() {
        return None;
    }
    // SAFETY: the loader keeps the image mapped from its first byte, and for the caller it stays loaded. Segments without
    // read permission do not exist on this processor's Linux.
    let page = unsafe { std::slice::from_raw_parts(start as *const u8, PAGE) };
    let ehdr = page.first_chunk::<EHDR_BYTES>()?;
    if !ehdr.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let half = |at: usize| {
        let bytes = ehdr.get(at..)?.first_chunk::<2>()?;
        Some(usize::from(u16::from_le_bytes(*bytes)))
    };
    let offset = ehdr.get(32..)?.first_chunk::<8>()?;
    let offset = usize::try_from(u64::from_le_bytes(*offset)).ok()?;
    let n_headers = half(56)?;
    let n_bytes = n_headers * size_of::<libc::Elf64_Phdr>();
    let is_inside = offset.checked_add(n_bytes)? <= PAGE;
    if half(54)? != size_of::<libc::Elf64_Phdr>() || offset % 8 != 0 || !is_inside {
        return None;
    }
    let first = (start + offset) as *const libc::Elf64_Phdr;
    // SAFETY: the table is aligned and lies in the page above; any bits are valid headers.
    let headers = unsafe { std::slice::from_raw_parts(first, n_headers) };
    // SAFETY: the loader's record of an image lives as long as the image.
    let map = unsafe { &*found.link_map };
    let is_first = headers.iter().any(|header| {
        header.p_type == libc::PT_LOAD
            && header.p_offset == 0
            && segment_range(map.addr, header).is_some_and(|segment| segment.start == start)
    });
    if !is_first {
        return None;
    }
    Image::new(map.addr, name_of(map.name), headers)
}

/// Calls `each` for the loaded images, the executable first, with the loader's count of unloadings, until it says false.
/// Runs under the loader's lock.
fn each_image<F: FnMut(&Image<'_>, Option<u64>) -> bool>(mut each: F) {
    // SAFETY: `visit` is the instance for F, gets `each` as its data, and `each` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit::<F>), (&raw mut each).cast()) };
}

unsafe extern "C" fn visit<F: FnMut(&Image<'_>, Option<u64>) -> bool>(
    info: *mut libc::dl_phdr_info,
    info_bytes: usize,
    each: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid record for the time of this call.
    let info = unsafe { &*info };
    // SAFETY: `each_image` passes its closure, which nobody else uses meanwhile.
    let each = unsafe { &mut *each.cast::<F>() };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    let n_headers = usize::from(info.dlpi_phnum);
    // SAFETY: the loader keeps the table of a loaded image, and its lock is held during this call.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, n_headers) };
    let counts_end = std::mem::offset_of!(libc::dl_phdr_info, dlpi_subs) + size_of::<u64>();
    let n_unloaded = (info_bytes >= counts_end).then_some(info.dlpi_subs);
    match Image::new(info.dlpi_addr as usize, name_of(info.dlpi_name), headers) {
        Some(image) => c_int::from(!each(&image, n_unloaded)),
        None => 0,
    }
}

/// The bytes of a C string that the loader owns, cut at the limit.
fn name_of<'a>(name: *const c_char) -> &'a [u8] {
    if name.is_null() {
        return &[];
    }
    // SAFETY: the loader's names are C strings.
    let len = unsafe { libc::strnlen(name, MAX_NAME) };
    // SAFETY: so many bytes are not the final zero, hence part of the string, which lives as long as the image.
    unsafe { std::slice::from_raw_parts(name.cast(), len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_look_ups_find_the_same_images() {
        prepare();
        let functions = [
            both_look_ups_find_the_same_images as *const () as usize,
            c_library_function().unwrap(),
            loader_function().unwrap(),
            vdso_start() + 64,
        ];
        let describe = |image: &Image<'_>| {
            (
                image.range.clone(),
                image.bias,
                image.name.to_vec(),
                image.unwind_header(),
                image.build_id().map(<[u8]>::to_vec),
            )
        };
        for function in functions {
            let found = with_image(function, describe).unwrap();
            std::assert!(found.0.contains(&function));
            std::assert!(found.3.is_some());
            std::assert_eq!(with_image_locked(function, describe), Some(found));
        }
        std::assert!(with_image(16, describe).is_none());
        std::assert!(with_image_locked(16, describe).is_none());
    }

    #[test]
    fn a_build_id_is_found_behind_other_notes_and_never_outside() {
        let note = |name: &[u8], kind: u32, desc: &[u8]| {
            let mut bytes = (name.len() as u32).to_le_bytes().to_vec();
            bytes.extend((desc.len() as u32).to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            for part in [name, desc] {
                bytes.extend(part);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let mut notes = note(b"GNU\0", 1, &[1; 15]);
        notes.extend(note(b"Go\0", 3, &[2; 4]));
        notes.extend(note(b"GNU\0", 3, &[7, 8, 9]));
        std::assert_eq!(build_id_in(&notes), Some(&[7, 8, 9][..]));
        let cut = notes.len() - 4;
        std::assert_eq!(build_id_in(&notes[..cut]), None);
        notes[4..8].fill(0xff);
        std::assert_eq!(build_id_in(&notes), None);
    }

    #[test]
    fn bytes_outside_segments_are_refused() {
        prepare();
        let here = bytes_outside_segments_are_refused as *const () as usize;
        with_image(here, |image| {
            let range = image.range.clone();
            std::assert!(image.bytes(range.end..range.end + 1).is_none());
            std::assert!(image.bytes(range.start..range.end + PAGE).is_none());
            std::assert!(image.bytes(here..here - 1).is_none());
            std::assert!(image.bytes(here..here + 1).is_some());
        });
    }
}
