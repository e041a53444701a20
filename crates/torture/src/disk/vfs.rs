//! A SQLite VFS that lets the system's ("unix") do everything, locks and shared memory included, and tells
//! the recorder whose directory a file lies in of every call that changes the disk.
//!
//! It is registered once for the process. A file's own structure is followed in memory by the system's:
//! `[ RecordingFile | the system's file ]`.

#![expect(unsafe_code, reason = "SQLite's file layer is an interface in C")]

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use rusqlite::ffi;

use super::recorder::{Call, Fault, Inode, Operation, Recorder};

const NAME: &CStr = c"wayhold-recording";

/// Recorders by their directory.
static RECORDERS: RwLock<BTreeMap<PathBuf, Arc<Recorder>>> = RwLock::new(BTreeMap::new());

/// The system's VFS, once ours is registered; an address, because pointers are not shared between threads.
static SYSTEM: OnceLock<usize> = OnceLock::new();

/// Has a recorder told of SQLite's calls, for as long as this lives. Files must be closed before.
#[derive(Debug)]
pub(super) struct Attached(PathBuf);

impl Attached {
    pub(super) fn new(recorder: &Arc<Recorder>) -> Self {
        let root = recorder.root().to_owned();
        let mut recorders = RECORDERS.write().unwrap_or_else(PoisonError::into_inner);
        recorders.insert(root.clone(), Arc::clone(recorder));
        Self(root)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut recorders = RECORDERS.write().unwrap_or_else(PoisonError::into_inner);
        recorders.remove(&self.0);
    }
}

/// Registers the VFS and returns the name to open files with.
pub(super) fn name() -> String {
    SYSTEM.get_or_init(|| {
        // SAFETY: the name is a C string. SQLite keeps the structure for ever, so it is leaked; it is made
        // whole before it is registered. The system's VFS is static.
        unsafe {
            let system = ffi::sqlite3_vfs_find(c"unix".as_ptr());
            assert!(!system.is_null(), "SQLite has no unix VFS");
            let mut vfs: ffi::sqlite3_vfs = ptr::read(system);
            vfs.iVersion = vfs.iVersion.min(2);
            vfs.szOsFile += c_int::try_from(size_of::<RecordingFile>()).unwrap_or(0);
            vfs.pNext = ptr::null_mut();
            vfs.zName = NAME.as_ptr();
            vfs.xOpen = Some(open);
            vfs.xDelete = Some(delete);
            vfs.xAccess = Some(access);
            let vfs = Box::leak(Box::new(vfs));
            ffi::sqlite3_vfs_register(vfs, 0);
            system as usize
        }
    });
    NAME.to_string_lossy().into_owned()
}

fn system() -> *mut ffi::sqlite3_vfs {
    SYSTEM
        .get()
        .map_or(ptr::null_mut(), |address| *address as *mut ffi::sqlite3_vfs)
}

/// What SQLite holds of an open file.
#[repr(C)]
struct RecordingFile {
    base: ffi::sqlite3_file,
    /// Null for a file that nobody records.
    handle: *mut Handle,
}

struct Handle {
    recorder: Arc<Recorder>,
    path: PathBuf,
    /// `None` for a file that is only read.
    inode: Option<Inode>,
    /// Whether the system syncs the directory with the first sync, as it does for logs and journals.
    sync_directory: bool,
}

/// # Safety
/// `file` was opened by `open` of this module.
unsafe fn inner(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    // SAFETY: SQLite allocates `szOsFile` bytes for a file, ours and behind them the system's.
    unsafe { file.cast::<RecordingFile>().add(1).cast() }
}

/// # Safety
/// As of `inner`; the handle lives until `close`.
unsafe fn handle<'a>(file: *mut ffi::sqlite3_file) -> Option<&'a mut Handle> {
    // SAFETY: `open` set the pointer to a box or to null, and SQLite uses a file from one thread at a time.
    unsafe { (*file.cast::<RecordingFile>()).handle.as_mut() }
}

/// Calls a method of the system's file.
macro_rules! pass {
    ($method:ident, $file:expr $(, $argument:expr)*) => {{
        let inner = inner($file);
        match (*(*inner).pMethods).$method {
            Some(method) => method(inner $(, $argument)*),
            None => ffi::SQLITE_IOERR,
        }
    }};
}

fn path_of(name: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(name.to_bytes()))
}

/// The recorder of a path, and the path as it names it.
fn recorder_of(path: &Path) -> Option<(Arc<Recorder>, PathBuf)> {
    let recorders = RECORDERS.read().unwrap_or_else(PoisonError::into_inner);
    let recorder = path.ancestors().find_map(|root| recorders.get(root))?;
    Some((Arc::clone(recorder), recorder.relative(path)?.to_owned()))
}

unsafe extern "C" fn open(
    _vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite calls this with a name that is null or a C string, and with `szOsFile` bytes at `file`.
    // The name is handed on as it is, because the system reads parameters behind its end.
    unsafe {
        (*file).pMethods = ptr::null();
        let recording = file.cast::<RecordingFile>();
        (*recording).handle = ptr::null_mut();
        let found = match name.is_null() {
            true => None,
            false => recorder_of(path_of(CStr::from_ptr(name))),
        };
        let Some(open) = (*system()).xOpen else {
            return ffi::SQLITE_CANTOPEN;
        };
        let Some((recorder, path)) = found else {
            let answer = open(system(), name, inner(file), flags, out_flags);
            if answer == ffi::SQLITE_OK {
                (*file).pMethods = &raw const METHODS;
            }
            return answer;
        };
        let (mut log, fault) = recorder.enter(Operation::Open, &path);
        if fault.is_some() {
            return ffi::SQLITE_CANTOPEN;
        }
        let answer = open(system(), name, inner(file), flags, out_flags);
        if answer != ffi::SQLITE_OK {
            return answer;
        }
        let writable = flags & ffi::SQLITE_OPEN_READWRITE != 0;
        let inode = writable.then(|| log.opened(&path).0);
        drop(log);
        // Whether the file was there before makes no difference to the system: a first sync that failed may have left it.
        let may_make = flags & ffi::SQLITE_OPEN_CREATE != 0;
        let log_or_journal =
            ffi::SQLITE_OPEN_WAL | ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_SUPER_JOURNAL;
        (*recording).handle = Box::into_raw(Box::new(Handle {
            recorder,
            path,
            inode,
            sync_directory: may_make && flags & log_or_journal != 0,
        }));
        (*file).pMethods = &raw const METHODS;
        ffi::SQLITE_OK
    }
}

unsafe extern "C" fn delete(
    _vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    sync_directory: c_int,
) -> c_int {
    // SAFETY: SQLite gives a C string.
    unsafe {
        let Some(delete) = (*system()).xDelete else {
            return ffi::SQLITE_IOERR_DELETE;
        };
        let Some((recorder, path)) = recorder_of(path_of(CStr::from_ptr(name))) else {
            return delete(system(), name, sync_directory);
        };
        let (mut log, fault) = recorder.enter(Operation::Remove, &path);
        if fault.is_some() {
            return ffi::SQLITE_IOERR_DELETE;
        }
        let answer = delete(system(), name, sync_directory);
        if answer == ffi::SQLITE_OK && log.of(&path).is_some() {
            let parent = path.parent().unwrap_or(Path::new("")).to_owned();
            log.record(Call::Remove { path });
            if sync_directory != 0 && !log.lies() {
                log.record(Call::SyncDirectory { path: parent });
            }
        }
        answer
    }
}

unsafe extern "C" fn access(
    _vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives a C string and a place for the answer.
    unsafe {
        let Some(access) = (*system()).xAccess else {
            return ffi::SQLITE_IOERR_ACCESS;
        };
        if let Some((recorder, path)) = recorder_of(path_of(CStr::from_ptr(name)))
            && recorder.enter(Operation::List, &path).1.is_some()
        {
            return ffi::SQLITE_IOERR_ACCESS;
        }
        access(system(), name, flags, out)
    }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: SQLite closes a file once and uses it no more.
    unsafe {
        let recording = file.cast::<RecordingFile>();
        let handle = std::mem::replace(&mut (*recording).handle, ptr::null_mut());
        if !handle.is_null() {
            drop(Box::from_raw(handle));
        }
        pass!(xClose, file)
    }
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    buffer: *mut c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe {
        if let Some(handle) = handle(file)
            && handle
                .recorder
                .enter(Operation::Read, &handle.path)
                .1
                .is_some()
        {
            return ffi::SQLITE_IOERR_READ;
        }
        pass!(xRead, file, buffer, amount, offset)
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    buffer: *const c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: `buffer` holds `amount` bytes; the rest is handed on as SQLite gave it.
    unsafe {
        let Some(handle) = handle(file) else {
            return pass!(xWrite, file, buffer, amount, offset);
        };
        let (mut log, fault) = handle.recorder.enter(Operation::Write, &handle.path);
        let (amount, answer) = match fault {
            None => (amount, ffi::SQLITE_OK),
            Some(Fault::Io | Fault::Forgets) => return ffi::SQLITE_IOERR_WRITE,
            Some(Fault::NoSpace) => return ffi::SQLITE_FULL,
            Some(Fault::Short) => (amount / 2, ffi::SQLITE_FULL),
        };
        let written = pass!(xWrite, file, buffer, amount, offset);
        if written != ffi::SQLITE_OK {
            return written;
        }
        let bytes = usize::try_from(amount).unwrap_or(0);
        if let Some(inode) = handle.inode {
            log.record(Call::Write {
                inode,
                offset: offset.cast_unsigned(),
                data: std::slice::from_raw_parts(buffer.cast::<u8>(), bytes).into(),
            });
        }
        answer
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe {
        let Some(handle) = handle(file) else {
            return pass!(xTruncate, file, size);
        };
        let (mut log, fault) = handle.recorder.enter(Operation::Truncate, &handle.path);
        if fault.is_some() {
            return ffi::SQLITE_IOERR_TRUNCATE;
        }
        let answer = pass!(xTruncate, file, size);
        if let (ffi::SQLITE_OK, Some(inode)) = (answer, handle.inode) {
            log.record(Call::SetLength {
                inode,
                bytes: size.cast_unsigned(),
            });
        }
        answer
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe {
        let Some(handle) = handle(file) else {
            return pass!(xSync, file, flags);
        };
        let (mut log, fault) = handle.recorder.enter(Operation::Sync, &handle.path);
        let Some(inode) = handle.inode.filter(|_| !log.lies()) else {
            return ffi::SQLITE_OK;
        };
        if fault.is_some() {
            log.sync_failed(handle.recorder.root(), inode);
            return ffi::SQLITE_IOERR_FSYNC;
        }
        // The record is what is durable here; the memory that holds the files needs no sync.
        log.record(Call::Sync { inode });
        if std::mem::take(&mut handle.sync_directory) {
            let parent = handle.path.parent().unwrap_or(Path::new(""));
            log.record(Call::SyncDirectory {
                path: parent.to_owned(),
            });
        }
        ffi::SQLITE_OK
    }
}

unsafe extern "C" fn file_size(
    file: *mut ffi::sqlite3_file,
    size: *mut ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe { pass!(xFileSize, file, size) }
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe { pass!(xLock, file, level) }
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe { pass!(xUnlock, file, level) }
}

unsafe extern "C" fn check_reserved_lock(file: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe { pass!(xCheckReservedLock, file, out) }
}

unsafe extern "C" fn file_control(
    file: *mut ffi::sqlite3_file,
    operation: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe { pass!(xFileControl, file, operation, argument) }
}

unsafe extern "C" fn sector_size(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe { pass!(xSectorSize, file) }
}

unsafe extern "C" fn device_characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe { pass!(xDeviceCharacteristics, file) }
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    page: c_int,
    page_size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe {
        if let Some(handle) = handle(file) {
            match handle
                .recorder
                .enter(Operation::SharedMemory, &handle.path)
                .1
            {
                None => {}
                Some(Fault::NoSpace) => return ffi::SQLITE_IOERR_SHMSIZE,
                Some(Fault::Io | Fault::Forgets | Fault::Short) => return ffi::SQLITE_IOERR_SHMMAP,
            }
        }
        pass!(xShmMap, file, page, page_size, extend, out)
    }
}

unsafe extern "C" fn shm_lock(
    file: *mut ffi::sqlite3_file,
    offset: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe { pass!(xShmLock, file, offset, count, flags) }
}

unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    // SAFETY: handed on as SQLite gave it.
    unsafe {
        let inner = inner(file);
        if let Some(barrier) = (*(*inner).pMethods).xShmBarrier {
            barrier(inner);
        }
    }
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, delete: c_int) -> c_int {
    // SAFETY: handed on as SQLite gave it.
    unsafe { pass!(xShmUnmap, file, delete) }
}

/// Without `xFetch`: a file that is mapped would be read past the recorder.
static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};
