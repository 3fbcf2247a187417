import java.io.DataInputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Executors;

import com.sun.net.httpserver.HttpServer;

/** Servers and clients for ci/programs: an echo by NIO, and HTTP by the JDK's own classes. */
public class Sockets {
    private static final int PORT = 9000;
    private static final int THREADS = 4;

    public static void main(String[] arguments) throws Exception {
        InetSocketAddress address = new InetSocketAddress(arguments[1], PORT);
        switch (arguments[0]) {
            case "nio-server" -> echo(address);
            case "http-server" -> http(address);
            case "nio-client" -> load(Integer.parseInt(arguments[2]), () -> blockingClient(address));
            case "http-client" -> load(Integer.parseInt(arguments[2]), () -> httpClient(arguments[1]));
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    /** One selector, all connections. */
    private static void echo(InetSocketAddress address) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open().bind(address);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        ByteBuffer buffer = ByteBuffer.allocateDirect(65536);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel accepted = listener.accept();
                    accepted.configureBlocking(false);
                    accepted.register(selector, SelectionKey.OP_READ);
                    continue;
                }
                SocketChannel channel = (SocketChannel) key.channel();
                buffer.clear();
                if (channel.read(buffer) < 0) {
                    channel.close();
                    continue;
                }
                buffer.flip();
                while (buffer.hasRemaining()) {
                    channel.write(buffer);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    private static void http(InetSocketAddress address) throws Exception {
        HttpServer server = HttpServer.create(address, 128);
        server.createContext("/", exchange -> {
            exchange.sendResponseHeaders(200, 3);
            exchange.getResponseBody().write("ok\n".getBytes());
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(THREADS));
        server.start();
    }

    /** One request and its answer. */
    private interface Exchange {
        void run() throws Exception;
    }

    private interface Client {
        Exchange connect() throws Exception;
    }

    private static Exchange blockingClient(InetSocketAddress address) throws Exception {
        Socket socket = new Socket();
        socket.setTcpNoDelay(true);
        socket.connect(address);
        OutputStream out = socket.getOutputStream();
        DataInputStream in = new DataInputStream(socket.getInputStream());
        byte[] sent = new byte[64];
        byte[] received = new byte[64];
        return () -> {
            sent[0]++;
            out.write(sent);
            in.readFully(received);
            if (!Arrays.equals(sent, received)) {
                throw new IllegalStateException("the echo is not what was sent");
            }
        };
    }

    private static Exchange httpClient(String host) {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://" + host + ":" + PORT + "/")).build();
        return () -> {
            HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            if (!answer.body().equals("ok\n")) {
                throw new IllegalStateException("the answer is not the server's");
            }
        };
    }

    /** Exchanges of all threads for some seconds: rate and latency. */
    private static void load(int seconds, Client client) throws Exception {
        List<Thread> threads = new ArrayList<>();
        List<long[]> latencies = new ArrayList<>();
        List<Throwable> failures = new ArrayList<>();
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        for (int i = 0; i < THREADS; i++) {
            Thread thread = new Thread(() -> {
                long[] taken = new long[1024];
                int count = 0;
                try {
                    Exchange exchange = client.connect();
                    for (long began = System.nanoTime(); began < end; began = System.nanoTime()) {
                        exchange.run();
                        if (count == taken.length) {
                            taken = Arrays.copyOf(taken, count * 2);
                        }
                        taken[count++] = System.nanoTime() - began;
                    }
                } catch (Throwable failure) {
                    synchronized (failures) {
                        failures.add(failure);
                    }
                }
                synchronized (latencies) {
                    latencies.add(Arrays.copyOf(taken, count));
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        for (Throwable failure : failures) {
            failure.printStackTrace();
            System.exit(1);
        }
        long[] all = latencies.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        System.out.printf("rate %.1f p50 %.1f p99 %.1f%n", (double) all.length / seconds,
            all[all.length / 2] / 1e3, all[all.length * 99 / 100] / 1e3);
        System.exit(0);
    }
}
