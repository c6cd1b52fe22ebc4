//! Rate at which the authority signs certificates, on one core and without a network: a figure for people, never
//! asserted.

use std::time::{Duration, Instant, SystemTime};

use voile_identity::{Identity, Keys};
use voile_testkit::TestAuthority;

/// Long enough for a rate that does not shake, short enough to be run by hand.
const LASTING: Duration = Duration::from_secs(3);

#[test]
#[ignore = "a measurement: run it alone, in release, on a quiet machine"]
fn certificates_signed_per_second_on_one_core() {
    let mesh = TestAuthority::new();
    let identity: Identity = "spiffe://cluster.local/ns/shop/sa/cart".parse().unwrap();
    let requests: Vec<String> = (0..64)
        .map(|_| Keys::generate().unwrap().request(Some(&identity)).unwrap())
        .collect();
    let (begin, mut signed) = (Instant::now(), 0_u32);
    for request in requests.iter().cycle() {
        let issued = mesh
            .authority()
            .issue(request, &identity, None, SystemTime::now());
        assert_eq!(issued.unwrap().chain.len(), 2);
        signed += 1;
        if begin.elapsed() >= LASTING {
            break;
        }
    }
    let rate = f64::from(signed) / begin.elapsed().as_secs_f64();
    println!(
        "{rate:.0} certificates a second on one core ({signed} signed, each from its PEM request to its PEM chain)"
    );
}
