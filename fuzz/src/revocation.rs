//! Lists of revoked certificates: any bytes are a list or an error in few words; only the authority revokes a
//! certificate, and each listed certificate is revoked.

use voile_identity::revocation::lists_of;
use voile_identity::{RevocationError, Revocations};

use crate::identity;

/// Any bytes, as DER and as PEM.
pub(crate) fn list(data: &[u8]) {
    let (root, now) = identity::root();
    let one = [data];
    let told = Revocations::told(&one);
    match Revocations::read(&one, &[root], now) {
        Ok(_) => panic!("a list that the authority never signed is believed"),
        Err(error) => {
            assert!(error.to_string().len() < 4096);
            if let Ok(told) = &told {
                // It reads, so it is refused for whose it is, or when.
                assert!(
                    !matches!(error, RevocationError::Malformed { .. }),
                    "{told:?}"
                );
                assert!(
                    told.len() <= data.len() / 3,
                    "more entries than bytes can name"
                );
            }
        }
    }
    if let Ok(lists) = lists_of(data) {
        assert!(!lists.is_empty());
        let bytes: usize = lists.iter().map(|list| list.len()).sum();
        assert!(bytes <= data.len());
    }
}
