//! Finds the network device of an address, so that its packets can be captured there and nowhere twice.

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// The device that has this address; for one of loopback's, loopback.
///
/// # Errors
/// When none has it.
#[expect(
    unsafe_code,
    reason = "the kernel's list of addresses has no safe wrapper"
)]
pub fn device_of(address: IpAddr) -> io::Result<CString> {
    if address.is_loopback() {
        return Ok(c"lo".to_owned());
    }
    let mut first = ptr::null_mut();
    // SAFETY: the C library makes the list; it is read while it lives, and freed once. Pointers are followed only
    // where they are not null, and addresses are read by their family.
    unsafe {
        if libc::getifaddrs(&raw mut first) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut found = None;
        let mut next = first;
        while let Some(entry) = next.as_ref() {
            next = entry.ifa_next;
            let Some(socket) = entry.ifa_addr.as_ref() else {
                continue;
            };
            let its = match i32::from(socket.sa_family) {
                libc::AF_INET => {
                    let socket = ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_in>());
                    IpAddr::V4(Ipv4Addr::from(u32::from_be(socket.sin_addr.s_addr)))
                }
                libc::AF_INET6 => {
                    let socket = ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_in6>());
                    IpAddr::V6(Ipv6Addr::from(socket.sin6_addr.s6_addr))
                }
                _ => continue,
            };
            if its == address {
                found = Some(CStr::from_ptr(entry.ifa_name).to_owned());
                break;
            }
        }
        libc::freeifaddrs(first);
        found.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("no device has address {address}"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_addresses_and_nobody_a_strangers() {
        let of = |address: [u8; 4]| device_of(address.into());
        assert_eq!(of([127, 9, 0, 1]).expect("loopback").as_c_str(), c"lo");
        // TEST-NET-1: never in use.
        assert!(of([192, 0, 2, 77]).is_err());
        let v6 = |text: &str| device_of(text.parse().expect("an address"));
        assert_eq!(v6("::1").expect("loopback").as_c_str(), c"lo");
        assert!(v6("2001:db8::77").is_err());
    }
}
