// Gateway API's conformance suite, v1.6.1, itself, against gateways of Voile's. The suite speaks to a Kubernetes API server; here that is a
// store in its own memory, and what it holds is written to the folder that `voile control` reads. What a cluster would do besides is
// done here: Pods of Deployments run (the suite's own echo-basic, each in a network namespace of its own), each Gateway gets a Pod
// with `voile proxy --role gateway`, and what Voile writes to `gateway-api-status.yaml` becomes the resources' status.
//
// Built outside of this repository, in a folder with these two files as `suite_test.go` and `cluster_test.go`:
//
//	go mod init suite && go get sigs.k8s.io/gateway-api@v1.6.1 sigs.k8s.io/gateway-api/conformance@v1.6.1
//	go mod tidy && go build -o echo-basic sigs.k8s.io/gateway-api/conformance/echo-basic && go test -c -o suite
//
// Run as root, with the programs by name, and in namespaces of its own, so that nothing is left behind. ONLY names cases, LOG a file
// for what Voile said, KEEP a folder for its resources and state:
//
//	VOILE=voile ECHO=echo-basic unshare -n -m -p --fork --kill-child ./suite -test.v
package suite

import (
	"context"
	"io/fs"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/config"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
)

// What is refused by name, and what would be this program's doing and not Voile's: addresses and what is made for a Gateway.
var refused = []features.FeatureName{
	features.SupportUDPRoute,
	features.SupportGatewayStaticAddresses,
	features.SupportGatewayAddressEmpty,
	features.SupportGatewayInfrastructurePropagation,
	features.SupportGatewayFrontendClientCertificateValidation,
	features.SupportGatewayFrontendClientCertificateValidationInsecureFallback,
	features.SupportGatewayBackendClientCertificate,
}

func TestSuite(t *testing.T) {
	c := newCluster(t)
	command := exec.Command(os.Getenv("VOILE"), "control", "--config", c.path("config"), "--state", c.path("state"), "--listen", control,
		"--plaintext", "127.0.0.1:15010", "--monitoring", "127.0.0.1:15014")
	plane, err := start(command)
	if err != nil {
		t.Fatal(err)
	}
	log := os.Getenv("LOG")
	// Tests that run side by side go on when this function is over: what they need ends with the test.
	t.Cleanup(func() {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		plane.stop()
		var all []string
		all = append(all, plane.lines...)
		for _, one := range c.edges {
			one.running.stop()
			all = append(all, "--- "+one.owner.name)
			all = append(all, one.running.lines...)
		}
		for _, one := range c.backends {
			one.running.stop()
		}
		if log != "" {
			os.WriteFile(log, []byte(strings.Join(all, "\n")), 0o600)
		}
	})
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if connection, err := net.Dial("tcp", control); err == nil {
			connection.Close()
			break
		}
		if time.Now().After(until) {
			t.Fatalf("no control plane: %v", plane.lines)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go c.listen(ctx)
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	ours := &gatewayv1.GatewayClass{}
	ours.Name, ours.Spec.ControllerName = class, "voile.dev/gateway-controller"
	if err := c.client.Create(ctx, ours); err != nil {
		t.Fatal(err)
	}
	access := &rest.Config{Host: server.URL}
	options := suite.ConformanceOptions{
		Client: c.client, Clientset: kubernetes.NewForConfigOrDie(access), RestConfig: access, ManifestFS: []fs.FS{&conformance.Manifests},
	}
	options.GatewayClassName = class
	options.AllowCRDsMismatch = true
	options.CleanupBaseResources, options.CleanupTestResources = true, true
	options.TimeoutConfig = config.DefaultTimeoutConfig()
	for feature := range features.AllFeatures {
		if !slices.Contains(refused, feature.Name) && !strings.HasPrefix(string(feature.Name), "Mesh") {
			options.SupportedFeatures = append(options.SupportedFeatures, feature.Name)
		}
	}
	all, err := suite.NewConformanceTestSuite(options)
	if err != nil {
		t.Fatal(err)
	}
	all.Setup(t, tests.ConformanceTests)
	only := strings.Split(os.Getenv("ONLY"), ",")
	for _, one := range tests.ConformanceTests {
		if only[0] != "" && !slices.Contains(only, one.ShortName) {
			continue
		}
		// The suite's own loop makes its client anew from a kubeconfig for each test.
		t.Run(one.ShortName, func(t *testing.T) { one.Run(t, all) })
	}
}
