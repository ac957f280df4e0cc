// Command pod runs in test pods. It prints the network it was started in as
// one line of JSON, and then waits for a signal:
//
//	pod                 print, and wait
//	pod show            print, and end
//	pod ping ADDRESS    one ICMP echo, for at most 5 s; for kubectl exec
//	pod version         get the API server's version as the pod's service account; for kubectl exec
//	pod listen PORT     print, and answer HTTP on the port with the same; the header Client is the client's address.
//	                    The answer to /zeros has no end
//	pod get URL         HTTP GET, for at most 10 s; prints "HOSTNAME saw ADDRESS"; for kubectl exec
//	pod receive URL DURATION  HTTP GET of what has no end; prints the bytes per second; for kubectl exec
//	pod restored TABLE  delete the IPv4 routes of a table, and print after how long all were added again
//	pod drive ADDRESS   open that PCI function by its VFIO group, and end; for kubectl exec
//	pod announce LINK NAME  say by LLDP on a link each second that it is a switch
//	pod pause           only wait, as the process that keeps a pod's namespaces
//
// It has no shell and needs no file: it is the only thing in its image. Some tests run it on a
// node, too.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/plumbline/plumbline/integration/vfio"
)

func main() {
	// First of all: the first process of a pod ignores signals without a handler.
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	if err := run(os.Args[1:], end); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run(arguments []string, end <-chan os.Signal) error {
	verb := ""
	if len(arguments) > 0 {
		verb = arguments[0]
	}
	switch {
	case len(arguments) == 0:
		if err := show(os.Stdout); err != nil {
			return err
		}
	case verb == "pause":
	case verb == "show":
		return show(os.Stdout)
	case verb == "ping" && len(arguments) == 2:
		return ping(arguments[1], 5*time.Second)
	case verb == "version" && len(arguments) == 1:
		return version(os.Stdout)
	case verb == "get" && len(arguments) == 2:
		return get(os.Stdout, arguments[1])
	case verb == "receive" && len(arguments) == 3:
		return receive(os.Stdout, arguments[1], arguments[2])
	case verb == "restored" && len(arguments) == 2:
		return restored(os.Stdout, arguments[1])
	case verb == "drive" && len(arguments) == 2:
		return drive(arguments[1])
	case verb == "announce" && len(arguments) == 3:
		return announce(arguments[1], arguments[2], end)
	case verb == "listen" && len(arguments) == 2:
		if err := show(os.Stdout); err != nil {
			return err
		}
		return listen(":"+arguments[1], end)
	default:
		return fmt.Errorf("no such use: %q", arguments)
	}
	<-end
	return nil
}

// drive opens a function as a driver in user space does.
func drive(address string) error {
	groups, err := filepath.Glob("/dev/vfio/[0-9]*")
	if err != nil {
		return err
	}
	if len(groups) != 1 {
		return fmt.Errorf("%d groups in /dev/vfio, want 1", len(groups))
	}
	device, err := vfio.Open(groups[0], address)
	if err != nil {
		return err
	}
	fmt.Println("opened", address, "by", groups[0])
	return device.Close()
}

func show(w io.Writer) error {
	network, err := look()
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(network)
}

// version shows what the service "kubernetes" answers: by its address, with the
// certificate and the token that the kubelet has mounted.
func version(w io.Writer) error {
	const secrets = "/var/run/secrets/kubernetes.io/serviceaccount/"
	ca, err := os.ReadFile(secrets + "ca.crt")
	if err != nil {
		return err
	}
	token, err := os.ReadFile(secrets + "token")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return fmt.Errorf("%sca.crt: no certificate", secrets)
	}
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs:    roots,
		MinVersion: tls.VersionTLS12,
	}}}
	server := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	request, err := http.NewRequest(http.MethodGet, "https://"+server+"/version", nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", server, response.Status)
	}
	_, err = io.Copy(w, io.LimitReader(response.Body, 1<<20))
	return err
}

// get shows which pod listens at a URL, and the client's address that it sees.
func get(w io.Writer, url string) error {
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var server network
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&server); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	seen, _, err := net.SplitHostPort(response.Header.Get("Client"))
	if err != nil {
		return fmt.Errorf("%s: header Client: %w", url, err)
	}
	_, err = fmt.Fprintf(w, "%s saw %s\n", server.Hostname, seen)
	return err
}

// atOnce is so much that system calls are few: they are slow in an emulated machine.
const atOnce = 1 << 20

// receive shows how many bytes a second arrive after the header.
func receive(w io.Writer, url, duration string) error {
	lasts, err := time.ParseDuration(duration)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second+lasts)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	began, bytes := time.Now(), 0
	for buffer := make([]byte, atOnce); time.Since(began) < lasts; {
		n, err := response.Body.Read(buffer)
		if err != nil {
			return fmt.Errorf("%s: after %d bytes: %w", url, bytes, err)
		}
		bytes += n
	}
	_, err = fmt.Fprintf(w, "%.0f\n", float64(bytes)/time.Since(began).Seconds())
	return err
}

// zeros answers until the client leaves.
func zeros(w http.ResponseWriter) {
	w.Header().Set("Content-Length", strconv.Itoa(math.MaxInt)) // without it, each chunk would have a header
	for buffer := make([]byte, atOnce); ; {
		if _, err := w.Write(buffer); err != nil {
			return
		}
	}
}

func listen(address string, end <-chan os.Signal) error {
	server := &http.Server{
		Addr:              address,
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/zeros" {
				zeros(w)
				return
			}
			w.Header().Set("Client", r.RemoteAddr)
			if err := show(w); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}),
	}
	go func() {
		<-end
		_ = server.Close()
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
