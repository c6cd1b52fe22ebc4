// The discovery of a real istiod, as its own tests run it (no Kubernetes is asked: the objects are those of a folder of YAML, which
// is looked at again and again), behind TLS of the mesh's root. Certificates are somebody else's to issue: their calls are passed
// on. Built with ISTIO of tests/cluster/settings.sh by
//
//	mkdir peer && cp istiod.go peer/istiod_test.go && cd peer && go mod init peer
//	go get istio.io/istio@$ISTIO && go mod tidy && go test -c -o istiod-peer
package peer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	security "istio.io/client-go/pkg/apis/security/v1"
	"istio.io/istio/pilot/pkg/features"
	"istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/kube"
	authentication "istio.io/istio/pkg/security"
	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const certificates = "/istio.v1.auth.IstioCertificateService/"

// What the environment says: LISTEN (host:port), CERTIFICATES (host:port of whoever issues them), STATE (the folder of the root
// and its key), RESOURCES (the folder of YAML).
func said(name string) string {
	value := os.Getenv(name)
	if value == "" {
		panic(name + " is not set")
	}
	return value
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func block(path string) []byte {
	found, _ := pem.Decode(must(os.ReadFile(path)))
	if found == nil {
		panic(path + ": no PEM")
	}
	return found.Bytes
}

// A certificate for this address, of the mesh's root, and that root.
func certificate(host string) (tls.Certificate, *x509.CertPool) {
	root := must(x509.ParseCertificate(block(filepath.Join(said("STATE"), "root-cert.pem"))))
	rootKey := must(x509.ParsePKCS8PrivateKey(block(filepath.Join(said("STATE"), "root-key.pem"))))
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.ParseIP(host)},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	leaf := must(x509.CreateCertificate(rand.Reader, template, root, &key.PublicKey, rootKey))
	pool := x509.NewCertPool()
	pool.AddCert(root)
	return tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: key}, pool
}

// Objects by their kind and name, with the words that each was read from.
type objects map[string]struct {
	words  string
	object runtime.Object
}

func read(folder string) (objects, error) {
	all := objects{}
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, words := range strings.Split(string(text), "\n---\n") {
			words = strings.TrimSpace(strings.TrimPrefix(words, "---\n"))
			if words == "" {
				continue
			}
			object, kind, err := kube.IstioCodec.UniversalDeserializer().Decode([]byte(words), nil, nil)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			about := object.(meta.Object)
			name := fmt.Sprintf("%s/%s/%s", kind.Kind, about.GetNamespace(), about.GetName())
			all[name] = struct {
				words  string
				object runtime.Object
			}{words, object}
		}
	}
	return all, nil
}

// One kind's client: `Create`, `Update` and `Delete` as all of them have them.
type writer[T any] interface {
	Create(context.Context, T, meta.CreateOptions) (T, error)
	Update(context.Context, T, meta.UpdateOptions) (T, error)
	Delete(context.Context, string, meta.DeleteOptions) error
}

func put[T any](to writer[T], object T) error {
	_, err := to.Create(context.Background(), object, meta.CreateOptions{})
	if kerrors.IsAlreadyExists(err) {
		_, err = to.Update(context.Background(), object, meta.UpdateOptions{})
	}
	return err
}

func apply(to kube.Client, object runtime.Object) error {
	switch object := object.(type) {
	case *core.Namespace:
		return put(to.Kube().CoreV1().Namespaces(), object)
	case *core.ServiceAccount:
		return put(to.Kube().CoreV1().ServiceAccounts(object.Namespace), object)
	case *core.Service:
		return put(to.Kube().CoreV1().Services(object.Namespace), object)
	case *core.Pod:
		return put(to.Kube().CoreV1().Pods(object.Namespace), object)
	case *security.AuthorizationPolicy:
		return put(to.Istio().SecurityV1().AuthorizationPolicies(object.Namespace), object)
	case *security.PeerAuthentication:
		return put(to.Istio().SecurityV1().PeerAuthentications(object.Namespace), object)
	}
	return fmt.Errorf("a %v is not passed on", reflect.TypeOf(object))
}

func remove(from kube.Client, object runtime.Object) error {
	about, now := object.(meta.Object), context.Background()
	namespace, name := about.GetNamespace(), about.GetName()
	switch object.(type) {
	case *core.Service:
		return from.Kube().CoreV1().Services(namespace).Delete(now, name, meta.DeleteOptions{})
	case *core.Pod:
		return from.Kube().CoreV1().Pods(namespace).Delete(now, name, meta.DeleteOptions{})
	case *security.AuthorizationPolicy:
		return from.Istio().SecurityV1().AuthorizationPolicies(namespace).Delete(now, name, meta.DeleteOptions{})
	case *security.PeerAuthentication:
		return from.Istio().SecurityV1().PeerAuthentications(namespace).Delete(now, name, meta.DeleteOptions{})
	}
	return fmt.Errorf("a %v is not removed", reflect.TypeOf(object))
}

// Whether the folder still says the same a moment later.
func again(folder string, found objects) bool {
	time.Sleep(20 * time.Millisecond)
	once, err := read(folder)
	return err == nil && len(once) == len(found)
}

// Brings what the folder says to the cluster, and from then on each difference.
func follow(folder string, cluster kube.Client) {
	known := objects{}
	for {
		found, err := read(folder)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			found = known
		}
		if len(found) < len(known) && !again(folder, found) {
			continue // a file that is being put in another's place may be nowhere for a moment
		}
		for name, one := range found {
			if before, ok := known[name]; ok && before.words == one.words {
				continue
			}
			if err := apply(cluster, one.object); err != nil {
				panic(fmt.Sprint(name, ": ", err))
			}
			fmt.Fprintln(os.Stderr, "applied", name)
		}
		for name, one := range known {
			if _, ok := found[name]; ok {
				continue
			}
			if err := remove(cluster, one.object); err != nil {
				panic(fmt.Sprint(name, ": ", err))
			}
			fmt.Fprintln(os.Stderr, "removed", name)
		}
		known = found
		time.Sleep(50 * time.Millisecond)
	}
}

func forward(to string, over *http.Transport, scheme string) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) {
			request.Out.URL.Scheme, request.Out.URL.Host = scheme, to
			request.Out.Host = to
		},
		Transport:     over,
		FlushInterval: -1,
	}
}

// Whoever calls is a node proxy by its token, as Kubernetes would say: types that istiod does not know are a control plane's
// to ask for, and else end the stream.
type nodeProxies struct{}

func (nodeProxies) AuthenticatorType() string { return "node proxies" }

func (nodeProxies) Authenticate(authentication.AuthContext) (*authentication.Caller, error) {
	who := []string{"spiffe://cluster.local/ns/istio-system/sa/ztunnel"}
	return &authentication.Caller{Identities: who}, nil
}

func TestIstiod(t *testing.T) {
	authentication.AuthPlaintext = true
	if !features.EnableAmbient {
		t.Fatal("PILOT_ENABLE_AMBIENT is not true")
	}
	listening := must(net.Listen("tcp", "127.0.0.1:0"))
	istiod := xds.NewFakeDiscoveryServer(t, xds.FakeOptions{
		ListenerBuilder: func() (net.Listener, error) { return listening, nil },
	})
	istiod.Discovery.Authenticators = []authentication.Authenticator{nodeProxies{}}
	go follow(said("RESOURCES"), istiod.KubeClient())

	host := must2(net.SplitHostPort(said("LISTEN")))
	own, roots := certificate(host)
	plain, sealed := &http.Protocols{}, &http.Protocols{}
	plain.SetUnencryptedHTTP2(true)
	sealed.SetHTTP2(true)
	discovery := forward(listening.Addr().String(), &http.Transport{Protocols: plain}, "http")
	issuer := forward(said("CERTIFICATES"), &http.Transport{
		Protocols:       sealed,
		TLSClientConfig: &tls.Config{RootCAs: roots},
	}, "https")
	server := &http.Server{
		Addr:      said("LISTEN"),
		Protocols: sealed,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{own}},
		Handler: http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
			if strings.HasPrefix(request.URL.Path, certificates) {
				issuer.ServeHTTP(answer, request)
			} else {
				discovery.ServeHTTP(answer, request)
			}
		}),
	}
	fmt.Fprintln(os.Stderr, "istiod is ready")
	t.Fatal(server.ListenAndServeTLS("", ""))
}

func must2(host, _ string, err error) string {
	return must(host, err)
}
